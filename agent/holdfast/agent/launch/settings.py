"""What one launcher is told at its start: one frozen object, built at the program's entry and passed down."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.agent.launch.memoryfolder import ROOT
from holdfast.agent.launch.start import EntrypointKind
from holdfast.wire.access import Access


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
    memory_root: Path = ROOT
    tee: Tee = Tee()
    max_restarts: int = 0  # only handed to scripts that read it; the watchdog's policy decides
    heartbeat_interval_s: float = 1.0  # a third of the policy's default `lost_after_s`
    leave_timeout_s: float = 1.0  # leaving a round takes tens of milliseconds; a stuck worker is replaced instead
    leave_grace_s: float = 0.0  # how long a SIGTERM may wait for the ranks to be moved elsewhere
    attach_grace_s: float = 0.3  # a script using holdfast.trainer attaches within this, once forked warm
    reserved_ports: int = 8  # rounds that may follow each other before a port is used again
