"""The command line and the environment, parsed into `LauncherSettings`. Pure but for reading the token's file."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from holdfast.agent.launch.devices import cpu_count, gpu_count
from holdfast.agent.launch.memoryfolder import ROOT
from holdfast.agent.launch.place import place_of
from holdfast.agent.launch.ports import address_towards
from holdfast.agent.launch.processes import TOKEN_FILE_VARIABLE, TOKEN_VARIABLE
from holdfast.agent.launch.settings import Entrypoint, LauncherSettings, Tee
from holdfast.agent.launch.start import EntrypointKind
from holdfast.api.control import RUN_DIRECTORY_VARIABLE
from holdfast.api.errors import InvalidInput, Problem, Unavailable
from holdfast.wire.access import WATCHDOG_CA_VARIABLE, Access, Address, Credential, Trust, read_token

_HEARTBEAT_INTERVAL_S_MAX: Final = 3600.0
_LEAVE_GRACE_S_MAX: Final = 30 * 86400.0  # pods may be given days to end in


class Flags(msgspec.Struct, frozen=True, kw_only=True):
    """The command line as given. `rdzv_id` is the job, `rdzv_endpoint` the watchdog."""

    entrypoint: tuple[str, ...]
    nnodes: str
    nproc_per_node: str
    rdzv_endpoint: str
    rdzv_id: str
    rdzv_backend: str
    max_restarts: int
    module: bool
    no_python: bool
    run_path: bool
    log_dir: str | None
    redirects: str
    tee: str | None
    local_addr: str | None
    member: str | None
    node: str | None
    run_dir: str | None
    memory_dir: str | None
    token_file: str | None
    heartbeat_interval: float
    leave_grace: float
    termination_log: str
    log_level: str
    node_rank: str | None
    master_addr: str | None
    master_port: str | None


def settings_of(flags: Flags, *, environment: Mapping[str, str], host: str) -> LauncherSettings:
    """The settings `flags` and `environment` ask for. Raises InvalidInput naming the flag and the fix."""
    _refuse_static(flags)
    _refuse_endless(flags)
    nodes = nodes_of(flags.nnodes)
    credential = credential_of(flags.token_file, environment)
    member, node = place_of(credential, environment=environment, host=host)
    run_dir = flags.run_dir or environment.get(RUN_DIRECTORY_VARIABLE) or _new_run_dir()
    log_dir = Path(flags.log_dir).resolve() if flags.log_dir else Path(run_dir).resolve() / "logs"
    # Somebody who named no log directory wants to see the output.
    tee = flags.tee if flags.tee is not None else ("none" if flags.log_dir else "all")
    watchdog = Access(endpoint_of(flags.rdzv_endpoint), credential, trust_of(environment))
    return LauncherSettings(
        watchdog=watchdog,
        job=job_of(flags.rdzv_id),
        member=flags.member or member,
        node=flags.node or node,
        address=flags.local_addr or address_towards(watchdog.address.host, watchdog.address.port),
        local_size=local_size_of(flags.nproc_per_node, environment),
        nodes=nodes,
        entrypoint=_entrypoint_of(flags),
        run_dir=Path(run_dir).resolve(),
        log_dir=log_dir,
        environment=dict(environment),
        tee=tee_of(tee),
        max_restarts=flags.max_restarts,
        memory_root=Path(flags.memory_dir).resolve() if flags.memory_dir else ROOT,
        heartbeat_interval_s=flags.heartbeat_interval,
        leave_grace_s=flags.leave_grace,
    )


def _new_run_dir() -> str:
    try:
        return tempfile.mkdtemp(prefix="holdfast-")
    except OSError as error:
        fix = f"name a directory that can be written, as no temporary one can be made ({error.strerror})"
        raise InvalidInput(Problem("--run-dir", None, fix)) from error


def _refuse_static(flags: Flags) -> None:
    given = {
        "--node-rank": flags.node_rank,
        "--master-addr": flags.master_addr,
        "--master-port": flags.master_port,
    }
    fix = "leave it out: the watchdog at --rdzv-endpoint assigns ranks and the group's address"
    if problems := [Problem(flag, value, fix) for flag, value in given.items() if value is not None]:
        raise InvalidInput(*problems)


def _refuse_endless(flags: Flags) -> None:
    """Neither infinity nor what is no number is a time to wait for."""
    given = {
        "--heartbeat-interval": (flags.heartbeat_interval, _HEARTBEAT_INTERVAL_S_MAX),
        "--leave-grace": (flags.leave_grace, _LEAVE_GRACE_S_MAX),
    }
    problems = [
        Problem(flag, seconds, f"give at most {most_s:.0f} seconds")
        for flag, (seconds, most_s) in given.items()
        if not seconds <= most_s  # true of NaN as well
    ]
    if problems:
        raise InvalidInput(*problems)


def nodes_of(nnodes: str) -> tuple[int, int]:
    """The least and the most nodes."""
    low, _, high = nnodes.partition(":")
    if not (low.isdigit() and (high or low).isdigit() and 0 < int(low) <= int(high or low)):
        raise InvalidInput(Problem("--nnodes", nnodes, "give a number or a range such as 1:4"))
    return int(low), int(high or low)


def endpoint_of(endpoint: str) -> Address:
    """Where the watchdog is."""
    return Address.parse(endpoint, given_by="--rdzv-endpoint", fix="give the watchdog's HOST:PORT")


def job_of(rdzv_id: str) -> str:
    """The job's namespace/name."""
    namespace, _, name = rdzv_id.rpartition("/")
    if not name or "/" in namespace:
        raise InvalidInput(Problem("--rdzv-id", rdzv_id, "give the job's NAMESPACE/NAME"))
    return f"{namespace or 'default'}/{name}"


def credential_of(token_file: str | None, environment: Mapping[str, str]) -> Credential:
    """The token to show the watchdog: in the flag's file, the variable, or the file a variable names."""
    if token_file is None and (token := environment.get(TOKEN_VARIABLE)):
        return Credential(token=token.strip())
    path = token_file or environment.get(TOKEN_FILE_VARIABLE)
    if path is None:
        fix = f"name the token's file, or set {TOKEN_VARIABLE} or {TOKEN_FILE_VARIABLE}"
        raise InvalidInput(Problem("--token-file", None, fix))
    try:
        read_token(path)
    except Unavailable as error:
        raise InvalidInput(Problem("--token-file", path, f"give a file with the token in it ({error})")) from error
    return Credential(file=Path(path).absolute())


def trust_of(environment: Mapping[str, str]) -> Trust:
    """Who may have signed the watchdog's certificate; nobody when none is named, and it is spoken to plainly."""
    return Trust(pem=environment.get(WATCHDOG_CA_VARIABLE, ""), given_by=WATCHDOG_CA_VARIABLE)


def local_size_of(nproc_per_node: str, environment: Mapping[str, str]) -> int:
    """How many workers this node runs."""
    if nproc_per_node.isdigit() and int(nproc_per_node) > 0:
        return int(nproc_per_node)
    gpus = gpu_count(environment)
    if nproc_per_node == "cpu" or (nproc_per_node == "auto" and not gpus):
        return cpu_count()
    if nproc_per_node in ("gpu", "auto") and gpus:
        return gpus
    fix = (
        "this node has no GPU; give a number or cpu"
        if nproc_per_node == "gpu"
        else "give a number, gpu, cpu or auto"
    )
    raise InvalidInput(Problem("--nproc-per-node", nproc_per_node, fix))


def tee_of(text: str) -> Tee:
    """`none`, `all`, or torchrun's form: one number for all ranks, or LOCAL_RANK:NUMBER,… with zero for none."""
    if text in ("none", "all"):
        return Tee(everyone=text == "all")
    if text in ("0", "1", "2", "3"):
        return Tee(everyone=text != "0")
    chosen = set()
    for part in text.split(","):
        local_rank, _, streams = part.partition(":")
        if not local_rank.isdigit() or streams not in ("0", "1", "2", "3"):
            raise InvalidInput(
                Problem("--tee", text, "give none, all, 0-3, or LOCAL_RANK:0-3 separated by commas")
            )
        if streams != "0":
            chosen.add(int(local_rank))
    return Tee(local_ranks=frozenset(chosen))


def _entrypoint_of(flags: Flags) -> Entrypoint:
    if flags.module and flags.no_python:
        raise InvalidInput(Problem("--no-python", "--module", "give one of the two"))
    if flags.no_python:
        return Entrypoint(EntrypointKind.PROGRAM, flags.entrypoint)
    if flags.module:
        return Entrypoint(EntrypointKind.MODULE, flags.entrypoint)
    script, *arguments = flags.entrypoint
    if not Path(script).exists():
        raise InvalidInput(Problem("ENTRYPOINT", script, "there is no such script; give its path"))
    return Entrypoint(EntrypointKind.SCRIPT, (script, *arguments))
