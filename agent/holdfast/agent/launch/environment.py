"""The environment of a worker: the launcher's own, plus what torchrun sets, plus Holdfast's few variables.

What changes from round to round comes from `api.control.round_environment`, because a worker that goes on to
another round sets that itself.

Source: the environment variables torchrun documents,
https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
"""

import ipaddress
import tempfile
from collections.abc import Mapping
from pathlib import Path

from holdfast.agent.launch.effect import Start
from holdfast.agent.launch.place import MEMBER_VARIABLE
from holdfast.api.control import (
    CONTROL_VARIABLE,
    RUN_DIRECTORY_VARIABLE,
    assignment_in,
    round_environment,
)
from holdfast.api.round import Seat

TOKEN_VARIABLE = "HOLDFAST_TOKEN"
TOKEN_FILE_VARIABLE = "HOLDFAST_TOKEN_FILE"


def worker_environment(
    start: Start,
    *,
    inherited: Mapping[str, str],
    member: str,
    control: Path,
    run_dir: Path,
    max_restarts: int,
) -> dict[str, str]:
    """Everything the process for `start` finds in its environment. The launcher's token is not part of it."""
    kept = without_token(inherited)
    round_ = start.round
    return {
        "OMP_NUM_THREADS": "1",
        **_gloo(round_),
        **kept,
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


def temporary_directory(run_dir: Path) -> dict[str, str]:
    """What tells the launcher's processes where temporary files may go, where no usual place can be written.

    Importing torch's compiler needs such a place, and in a pod the whole file system may be read-only. Raises
    OSError when the run directory cannot be written either.
    """
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        directory = run_dir / "tmp"
        directory.mkdir(exist_ok=True)
        return {"TMPDIR": str(directory)}
    return {}


def error_file(run_dir: Path, start: Start) -> Path:
    """Where a worker leaves its error for torch's elastic tools."""
    return run_dir / f"error-rank-{start.rank:05d}.round-{start.round.number:04d}.json"


def _gloo(round_: Seat) -> dict[str, str]:
    """On one machine gloo should not resolve the host's own name, which may point anywhere."""
    return {"GLOO_SOCKET_IFNAME": "lo"} if is_loopback(round_.endpoint.host) else {}


def is_loopback(host: str) -> bool:
    """Whether `host` names this machine by its loopback interface."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
