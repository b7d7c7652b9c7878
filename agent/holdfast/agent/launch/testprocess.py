"""The process that does a self-test: how it is asked for, and what it leaves.

It is born like a worker, so a warm parent spares it the import of torch and kills it when the launcher ends. Its
answer is a file in the run directory, so that nothing of what it prints can be taken for one.
"""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from holdfast.agent.launch.birth import Ended, Fork
from holdfast.agent.launch.effect import StartTest
from holdfast.agent.launch.environment import without_token
from holdfast.agent.launch.logfile import ending
from holdfast.agent.launch.settings import EntrypointKind
from holdfast.api.bitflip import CORRUPTIBLE_VARIABLE
from holdfast.api.decoding import decode_msgpack
from holdfast.api.drill import DRILL_FILE
from holdfast.api.errors import Malformed
from holdfast.api.selftest import GOLDEN_VARIABLE, Tested

_MODULE: Final = "holdfast.agent.selftest"
_RESULT_BYTES_MAX: Final = 64 << 10  # it is fitted into half of that
_SAYS_MAX: Final = 400


class TestProcess:
    """Where one launcher's self-tests leave their files."""

    __test__ = False  # not a test of pytest's

    def __init__(self, run_dir: Path, log_dir: Path, member: str) -> None:
        self._run_dir = run_dir
        self._result = run_dir / "selftest-result.msgpack"
        self._log = log_dir / f"{member}.selftest.log"

    def request(self, start: StartTest, inherited: Mapping[str, str]) -> Fork:
        """What to ask the warm parent for. Its devices are those that workers get: the same environment."""
        wanted = start.request
        self._result.unlink(missing_ok=True)
        self._log.unlink(missing_ok=True)
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

    def outcome(self, ended: Ended) -> Tested | str:
        """What it found out, or why that is not known."""
        how = f"signal {ended.signal}" if ended.signal else f"exit code {ended.exit_code}"
        with contextlib.suppress(OSError, Malformed):
            if self._result.stat().st_size <= _RESULT_BYTES_MAX:
                return decode_msgpack(self._result.read_bytes(), Tested)
        last = ending(self._log, since=0).strip().rpartition("\n")[2]
        return f"the self-test ended with {how}{f': {last}' if last else ''}"[:_SAYS_MAX]
