"""What one launcher is told at its start: the command line and the environment, parsed into `LauncherSettings`.

In a pod member and node follow from the token: the one that the kubelet puts there names the pod that it is
bound to, and from Kubernetes 1.32 on the pod's node. Nothing is proved by that, and nothing need be: it is the
launcher's own token, and the watchdog asks the API server whose it is.
Source: https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/ (private claims)
"""

import os
import tempfile
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from holdfast.agent.launch.forking import EntrypointKind
from holdfast.agent.launch.host import address_towards, cpu_count, gpu_count
from holdfast.agent.launch.importlog import NAME
from holdfast.agent.launch.memoryfolder import ROOT
from holdfast.api.bounds import LEARNED, NAME_LENGTH_MAX, Name
from holdfast.api.control import RUN_DIRECTORY_VARIABLE
from holdfast.api.decoding import decode_json
from holdfast.api.errors import InvalidInput, Malformed, Problem, Unavailable
from holdfast.wire.access import WATCHDOG_CA_VARIABLE, Access, Address, Credential, Trust, read_token

MEMBER_VARIABLE: Final = "HOLDFAST_MEMBER"
NODE_VARIABLE: Final = "HOLDFAST_NODE"
TOKEN_VARIABLE: Final = "HOLDFAST_TOKEN"
TOKEN_FILE_VARIABLE: Final = "HOLDFAST_TOKEN_FILE"
_HEARTBEAT_INTERVAL_S_MAX: Final = 3600.0
_LEAVE_GRACE_S_MAX: Final = 30 * 86400.0  # pods may be given days to end in
_TOKEN_PARTS: Final = 3  # header, claims, signature


@dataclass(frozen=True, slots=True)
class Entrypoint:
    """The user's program and its arguments; `argv[0]` is the script, the module or the program."""

    kind: EntrypointKind
    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tee:
    """Whose log lines are copied to the launcher's own output: every local rank, or the ones in `local_ranks`."""

    everyone: bool = False
    local_ranks: frozenset[int] = frozenset()

    def includes(self, local_rank: int) -> bool:
        return self.everyone or local_rank in self.local_ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherSettings:
    """One launcher's settings.

    `address` is the one under which other nodes reach this node,
    `nodes` the range of nodes for a job that nobody submits,
    `environment` what workers inherit (the launcher's own environment without its token),
    `memory_root` the directory in memory in which the folder for snapshots is made.
    """

    watchdog: Access
    job: str
    member: str
    node: str
    address: str
    local_size: int
    nodes: tuple[int, int]
    entrypoint: Entrypoint
    run_dir: Path
    log_dir: Path
    environment: Mapping[str, str] = field(repr=False)
    memory_root: Path
    tee: Tee
    max_restarts: int  # only handed to scripts that read it; the watchdog's policy decides
    heartbeat_interval_s: float
    preload: tuple[str, ...]  # modules to import beforehand; `preload.LEARNED` is what the script imported before
    leave_grace_s: float  # how long a SIGTERM may wait for the ranks to be moved elsewhere


class Flags(msgspec.Struct, frozen=True, kw_only=True):
    """The command line as given. `rdzv_id` is the job, `rdzv_endpoint` the watchdog."""

    entrypoint: tuple[str, ...]
    nnodes: str
    nproc_per_node: str
    rdzv_endpoint: str
    rdzv_id: str
    max_restarts: int = 0
    module: bool = False
    no_python: bool = False
    log_dir: str | None = None
    tee: str | None = None
    local_addr: str | None = None
    member: str | None = None
    node: str | None = None
    run_dir: str | None = None
    memory_dir: str | None = None
    token_file: str | None = None
    heartbeat_interval: float = 1.0  # a third of the policy's default `lost_after_s`
    leave_grace: float = 0.0
    preload: str = LEARNED
    node_rank: str | None = None
    master_addr: str | None = None
    master_port: str | None = None


def settings_of(flags: Flags, *, environment: Mapping[str, str], host: str) -> LauncherSettings:
    """The settings `flags` and `environment` ask for. Raises InvalidInput naming the flag and the fix."""
    _refuse(flags)
    low, _, high = flags.nnodes.partition(":")
    high = high or low
    if not (low.isdigit() and high.isdigit() and 0 < int(low) <= int(high)):
        raise InvalidInput(Problem("--nnodes", flags.nnodes, "give a number or a range such as 1:4"))
    credential = credential_of(flags.token_file, environment)
    member, node = place_of(credential, environment=environment, host=host)
    given = flags.run_dir or environment.get(RUN_DIRECTORY_VARIABLE)
    try:
        run_dir = Path(given or tempfile.mkdtemp(prefix="holdfast-")).resolve()
    except OSError as error:
        fix = f"name a directory that can be written, as no temporary one can be made ({error.strerror})"
        raise InvalidInput(Problem("--run-dir", None, fix)) from error
    address = Address.parse(flags.rdzv_endpoint, given_by="--rdzv-endpoint", fix="give the watchdog's HOST:PORT")
    return LauncherSettings(
        watchdog=Access(address, credential, trust_of(environment)),
        job=job_of(flags.rdzv_id),
        member=flags.member or member,
        node=flags.node or node,
        address=flags.local_addr or address_towards(address.host, address.port),
        local_size=local_size_of(flags.nproc_per_node, environment),
        nodes=(int(low), int(high)),
        entrypoint=_entrypoint_of(flags),
        run_dir=run_dir,
        log_dir=Path(flags.log_dir).resolve() if flags.log_dir else run_dir / "logs",
        environment=dict(environment),
        # Somebody who named no log directory wants to see the output.
        tee=tee_of(flags.tee if flags.tee is not None else ("none" if flags.log_dir else "all")),
        max_restarts=flags.max_restarts,
        memory_root=Path(flags.memory_dir).resolve() if flags.memory_dir else ROOT,
        heartbeat_interval_s=flags.heartbeat_interval,
        leave_grace_s=flags.leave_grace,
        preload=preload_of(flags.preload),
    )


def _refuse(flags: Flags) -> None:
    """Refuse torchrun's flags for static rounds, and a time that nobody can wait for."""
    fix = "leave it out: the watchdog at --rdzv-endpoint assigns ranks and the group's address"
    static = (
        ("--node-rank", flags.node_rank),
        ("--master-addr", flags.master_addr),
        ("--master-port", flags.master_port),
    )
    if problems := [Problem(flag, value, fix) for flag, value in static if value is not None]:
        raise InvalidInput(*problems)
    bounded = (
        ("--heartbeat-interval", flags.heartbeat_interval, _HEARTBEAT_INTERVAL_S_MAX),
        ("--leave-grace", flags.leave_grace, _LEAVE_GRACE_S_MAX),
    )
    problems = [
        Problem(flag, seconds, f"give at most {most_s:.0f} seconds")
        for flag, seconds, most_s in bounded
        if not seconds <= most_s  # true of NaN as well
    ]
    if problems:
        raise InvalidInput(*problems)


def _entrypoint_of(flags: Flags) -> Entrypoint:
    if flags.module and flags.no_python:
        raise InvalidInput(Problem("--no-python", "--module", "give one of the two"))
    if flags.module or flags.no_python:
        return Entrypoint(EntrypointKind.MODULE if flags.module else EntrypointKind.PROGRAM, flags.entrypoint)
    script = flags.entrypoint[0]
    if not Path(script).exists():
        raise InvalidInput(Problem("ENTRYPOINT", script, "there is no such script; give its path"))
    return Entrypoint(EntrypointKind.SCRIPT, flags.entrypoint)


def trust_of(environment: Mapping[str, str]) -> Trust:
    """Who may have signed the watchdog's certificate; nobody when none is named, and it is spoken to plainly."""
    return Trust(pem=environment.get(WATCHDOG_CA_VARIABLE, ""), given_by=WATCHDOG_CA_VARIABLE)


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


def local_size_of(nproc_per_node: str, environment: Mapping[str, str]) -> int:
    """How many workers this node runs."""
    if nproc_per_node.isdigit() and int(nproc_per_node) > 0:
        return int(nproc_per_node)
    gpus = gpu_count(environment)
    if nproc_per_node == "cpu" or (nproc_per_node == "auto" and not gpus):
        return cpu_count()
    if nproc_per_node in ("gpu", "auto") and gpus:
        return gpus
    no_gpu = "this node has no GPU; give a number or cpu"
    fix = no_gpu if nproc_per_node == "gpu" else "give a number, gpu, cpu or auto"
    raise InvalidInput(Problem("--nproc-per-node", nproc_per_node, fix))


def tee_of(text: str) -> Tee:
    """`none`, `all`, or torchrun's form: one number for all ranks, or LOCAL_RANK:NUMBER,… with zero for none."""
    if text in ("none", "all", "0", "1", "2", "3"):
        return Tee(everyone=text not in ("none", "0"))
    chosen = set()
    for part in text.split(","):
        local_rank, _, streams = part.partition(":")
        if not local_rank.isdigit() or streams not in ("0", "1", "2", "3"):
            fix = "give none, all, 0-3, or LOCAL_RANK:0-3 separated by commas"
            raise InvalidInput(Problem("--tee", text, fix))
        if streams != "0":
            chosen.add(int(local_rank))
    return Tee(local_ranks=frozenset(chosen))


def preload_of(text: str) -> tuple[str, ...]:
    """Names of modules separated by commas, `learned` among them or not; nothing at all is an answer too."""
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    for name in names:
        if len(name) > NAME_LENGTH_MAX or not NAME.fullmatch(name):
            fix = f"give names of installed modules separated by commas, and {LEARNED} for what the script imports"
            raise InvalidInput(Problem("--preload", name, fix))
    return names


class Named(msgspec.Struct, frozen=True):
    """Something of the cluster."""

    name: Name = ""


class Bound(msgspec.Struct, frozen=True):
    """What a token is bound to."""

    pod: Named = Named()
    node: Named = Named()


class Claims(msgspec.Struct, frozen=True):
    """What a service account's token says of itself, as far as it matters here."""

    bound: Bound = msgspec.field(name="kubernetes.io", default=Bound())


def place_of(credential: Credential, *, environment: Mapping[str, str], host: str) -> tuple[str, str]:
    """Member and node: as the environment says, else as the token does, else as the host is called.

    Several launchers may run on one host, so its name alone names no member. Raises Unavailable when the token
    cannot be read.
    """
    bound = bound_to(credential.read())
    member = environment.get(MEMBER_VARIABLE) or bound.pod.name or f"{host}-{os.getpid()}"
    return member, environment.get(NODE_VARIABLE) or bound.node.name or host


def bound_to(token: str) -> Bound:
    """The pod and the node that a token names; empty names where it names none."""
    parts = token.split(".")
    if len(parts) != _TOKEN_PARTS:
        return Bound()
    try:
        return decode_json(urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)), Claims).bound
    except (ValueError, Malformed):
        return Bound()
