"""The processes a launcher starts: what each finds in its environment, and how a self-test is asked for.

A worker's environment is the launcher's own, plus what torchrun sets, plus Holdfast's few variables. What changes
from round to round comes from `api.control.round_environment`, because a worker that goes on to another round sets
that itself.

Source: the environment variables torchrun documents,
https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
"""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from holdfast.agent.launch.forking import Ended, EntrypointKind, Fork
from holdfast.agent.launch.host import is_loopback
from holdfast.agent.launch.localset import Start, StartTest
from holdfast.agent.launch.logs import ending
from holdfast.agent.launch.settings import MEMBER_VARIABLE, TOKEN_FILE_VARIABLE, TOKEN_VARIABLE
from holdfast.agent.linktest.asked import PART_VARIABLE
from holdfast.api.bitflip import CORRUPTIBLE_VARIABLE
from holdfast.api.control import CONTROL_VARIABLE, RUN_DIRECTORY_VARIABLE, assignment_in, round_environment
from holdfast.api.decoding import decode_msgpack
from holdfast.api.drill import DRILL_FILE
from holdfast.api.errors import Malformed
from holdfast.api.selftest import GOLDEN_VARIABLE, LinkTest, Tested

_MODULE: Final = "holdfast.agent.selftest"
_LINKS_MODULE: Final = "holdfast.agent.linktest"
_RESULT_BYTES_MAX: Final = 64 << 10  # it is fitted into half of that
_SAYS_MAX: Final = 400
FLIGHT_RECORDS: Final = 64
"""Collectives that torch remembers in each worker; one costs less than a microsecond."""


def worker_environment(
    start: Start, *, inherited: Mapping[str, str], member: str, control: Path, run_dir: Path, max_restarts: int
) -> dict[str, str]:
    """Everything the process for `start` finds in its environment. The launcher's token is not part of it."""
    round_ = start.round
    return {
        "OMP_NUM_THREADS": "1",
        # Of each group, so that a round that stands still can say which collectives were issued last.
        "TORCH_FR_BUFFER_SIZE": str(FLIGHT_RECORDS),
        # On one machine gloo should not resolve the host's own name, which may point anywhere.
        **({"GLOO_SOCKET_IFNAME": "lo"} if is_loopback(round_.endpoint.host) else {}),
        **without_token(inherited),
        **round_environment(assignment_in(round_, local_rank=start.local_rank, restarts=start.restarts)),
        "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
        "TORCHELASTIC_USE_AGENT_STORE": "False",  # rank 0 hosts the store of the round
        "TORCHELASTIC_ERROR_FILE": str(error_file(run_dir, start)),
        CONTROL_VARIABLE: str(control),
        RUN_DIRECTORY_VARIABLE: str(run_dir),
        MEMBER_VARIABLE: member,
    }


def without_token(inherited: Mapping[str, str]) -> dict[str, str]:
    """An environment that does not give away who may speak for this launcher."""
    return {name: value for name, value in inherited.items() if name not in (TOKEN_VARIABLE, TOKEN_FILE_VARIABLE)}


def error_file(run_dir: Path, start: Start) -> Path:
    """Where a worker leaves its error for torch's elastic tools."""
    return run_dir / f"error-rank-{start.rank:05d}.round-{start.round.number:04d}.json"


class TestProcess:
    """The process that does a self-test: how it is asked for, and what it leaves.

    It is forked like a worker, so a warm parent spares it the import of torch and kills it when the launcher ends.
    Its answer is a file in the run directory, so that nothing of what it prints can be taken for one.
    """

    __test__ = False  # not a test of pytest's

    def __init__(self, run_dir: Path, log_dir: Path, member: str, address: str) -> None:
        self._member, self._address = member, address
        self._run_dir = run_dir
        self._result = run_dir / "selftest-result.msgpack"
        self._log = log_dir / f"{member}.selftest.log"

    def request(self, start: StartTest, inherited: Mapping[str, str]) -> Fork:
        """What to ask the warm parent for. Its devices are those that workers get: the same environment."""
        wanted = start.request
        self._result.unlink(missing_ok=True)
        self._log.unlink(missing_ok=True)
        if wanted.links is not None:
            return self._of_links(start.ticket, wanted.number, wanted.links, inherited)
        argv = [_MODULE, "--level", wanted.level.value, "--number", str(wanted.number)]
        argv += ["--tensor", str(wanted.tensor), "--result", str(self._result)]
        if golden := inherited.get(GOLDEN_VARIABLE):
            argv += ["--golden", golden]
        drill = self._run_dir / DRILL_FILE
        # Armed as bit flips are: a file that was left behind must not let the CPU stand in for real GPUs.
        if inherited.get(CORRUPTIBLE_VARIABLE) and drill.exists():
            argv += ["--drill", str(drill)]
        return Fork(
            ticket=start.ticket,
            name="selftest",
            kind=EntrypointKind.MODULE,
            argv=tuple(argv),
            env={**without_token(inherited), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            cwd=os.getcwd(),
            log=str(self._log),
        )

    def _of_links(self, ticket: int, number: int, part: LinkTest, inherited: Mapping[str, str]) -> Fork:
        argv = [_LINKS_MODULE, "asked", "--node", self._member, "--address", self._address]
        argv += ["--number", str(number), "--result", str(self._result)]
        return Fork(
            ticket=ticket,
            name="linktest",
            kind=EntrypointKind.MODULE,
            argv=tuple(argv),
            env={**without_token(inherited), PART_VARIABLE: msgspec.json.encode(part).decode()},
            cwd=os.getcwd(),
            log=str(self._log),
        )

    def outcome(self, ended: Ended) -> Tested | str:
        """What it found out, or why that is not known."""
        how = f"signal {ended.signal}" if ended.signal else f"exit code {ended.exit_code}"
        with contextlib.suppress(OSError, Malformed):
            if self._result.stat().st_size <= _RESULT_BYTES_MAX:
                return decode_msgpack(self._result.read_bytes(), Tested)
        last = ending(self._log, since=0).strip().rpartition("\n")[2]
        return f"the self-test ended with {how}{f': {last}' if last else ''}"[:_SAYS_MAX]
