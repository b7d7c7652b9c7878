"""What the acts showed, as figures: against the targets, the peers, and what cannot be spared.

Reading pages is mostly the API server's work, and waits for its core: the figure beside it, against a client that
reads the same pages and decodes nothing, says how much of the time is the operator's own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from figure import Figure, measured

from kube.acts import Creation, Idle, Loss, Storm
from kube.audit import Write

LISTED: Final = 10_000

Told = dict[str, float]


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is played, and how often."""

    members: int
    lost: int
    losses: int
    lists: int
    informers: int

    @property
    def listed(self) -> int:
        return min(LISTED, self.members)

    @property
    def nodes(self) -> int:
        return self.members + self.lost


@dataclass(frozen=True, slots=True)
class Lists:
    """Pods that run, listed by each."""

    ours: list[Told]
    informer: list[Told]
    raw: list[Told]


def list_figures(lists: Lists, scale: Scale) -> list[Figure]:
    size = f"{scale.listed} pods"
    return [
        measured(
            f"list {size} into the cache",
            ours=of(lists.ours, "wall_s"),
            other=[1.0],
            unit="s",
            target=1.0,
        ),
        measured(
            f"list {size} into the cache: CPU",
            ours=of(lists.ours, "cpu_s"),
            other=[1.0],
            unit="s",
            target=1.0,
        ),
        measured(
            f"list {size}, x reading the same pages without decoding them",
            ours=of(lists.ours, "wall_s"),
            other=of(lists.raw, "wall_s"),
            unit="s",
            target=1.5,
        ),
        measured(
            f"list {size}, x the kubernetes package's informer",
            ours=of(lists.ours, "wall_s"),
            other=of(lists.informer, "wall_s"),
            unit="s",
            target=0.1,
        ),
        measured(
            f"resident memory with {size} listed",
            ours=of(lists.ours, "resident_mb"),
            other=[150.0],
            unit="MB",
            target=1.0,
        ),
        measured(
            f"resident memory with {size} listed, x the kubernetes package's informer",
            ours=of(lists.ours, "resident_mb"),
            other=of(lists.informer, "resident_mb"),
            unit="MB",
            target=0.5,
        ),
    ]


def creation_figures(creation: Creation, bare: Told, scale: Scale) -> list[Figure]:
    ours_us, bare_us = 1e6 / scale.members, 1e6 / scale.listed
    return [
        measured(
            f"create {scale.members} pods, first request to last answer, x the bare POST loop, each pod",
            ours=[creation.span_s * ours_us],
            other=[bare["wall_s"] * bare_us],
            unit="us",
            target=1.1,
        ),
        measured(
            f"create {scale.members} pods: CPU, x the bare POST loop, each pod",
            ours=[creation.cpu_s * ours_us],
            other=[bare["cpu_s"] * bare_us],
            unit="us",
            target=2.0,
        ),
        measured(
            f"most memory while {scale.members} pods are created, {scale.nodes} nodes seen",
            ours=[creation.peak_mb],
            other=[300.0],
            unit="MB",
            target=1.0,
        ),
        measured(
            f"writes to create a job of {scale.members} members, x its pods",
            ours=[float(len(creation.writes))],
            other=[float(scale.members)],
            unit="writes",
            target=1.01,
        ),
    ]


def storm_figures(storm: Storm, scale: Scale) -> list[Figure]:
    each_us = 1e6 / scale.members
    return [
        measured(
            f"share of a core while {scale.members} pods report at {scale.members / storm.wall_s:.0f} a second",
            ours=[storm.cpu_s / storm.wall_s],
            other=[0.5],
            unit="cores",
            target=1.0,
        ),
        measured(
            f"CPU for each of {scale.members} status updates, x a bare watch that only decodes them",
            ours=[storm.cpu_s * each_us],
            other=[storm.bare_cpu_s * each_us],
            unit="us",
            target=10.0,
        ),
        measured(
            f"writes while {scale.members} pods start to run",
            ours=[float(len(storm.writes))],
            other=[10.0],
            unit="writes",
            target=1.0,
        ),
    ]


def loss_figures(one: Loss, losses: Sequence[Loss], scale: Scale) -> list[Figure]:
    what = f"{scale.lost} of {scale.members} nodes fail"
    return [
        measured(
            f"{what}: plan shown to last replacement posted",
            ours=[each.since_plan_s for each in losses],
            other=[10.0],
            unit="s",
            target=1.0,
        ),
        measured(
            f"{what}: last node seen to fail to last replacement posted, the scripted watchdog's turn included",
            ours=[each.since_seen_s for each in losses],
            other=[10.0],
            unit="s",
            target=1.0,
        ),
        measured(
            f"{what}: CPU until the last replacement is posted",
            ours=[each.cpu_s for each in losses],
            other=[10.0],
            unit="s",
            target=1.0,
        ),
        writes_figure(
            f"writes when {what}, x what cannot be spared", [each.writes for each in losses], scale.lost
        ),
        writes_figure("writes when one node fails, x what cannot be spared", [one.writes], 1),
    ]


def writes_figure(name: str, writes: Sequence[Sequence[Write]], nodes: int) -> Figure:
    """A pod deleted, one created, a node cordoned; and once each the status and an event."""
    return measured(
        name,
        ours=[float(len(each)) for each in writes],
        other=[3.0 * nodes + 2],
        unit="writes",
        target=1.5,
    )


def idle_figures(idle: Idle, progress: Sequence[Write], reports: int, scale: Scale) -> list[Figure]:
    return [
        measured(
            f"restart over {scale.members} pods and {scale.nodes} nodes: start to seeing all, imports included",
            ours=[idle.ready_s],
            other=[3.0],
            unit="s",
            target=1.0,
        ),
        measured(
            f"resident memory with {scale.members} pods and {scale.nodes} nodes",
            ours=[idle.resident_mb],
            other=[300.0],
            unit="MB",
            target=1.0,
        ),
        measured(
            f"CPU for one look at {scale.members} members with nothing to do",
            ours=[1e3 * idle.look_cpu_s],
            other=[500.0],
            unit="ms",
            target=1.0,
        ),
        none_wanted("writes after a restart with nothing to do", idle.restart_writes),
        none_wanted(f"writes of {idle.looks:.0f} looks with nothing to do", idle.look_writes),
        measured(
            f"writes while {reports} reports tell of progress within 10 s",
            ours=[float(len(progress))],
            other=[1.0],
            unit="writes",
            target=1.0,
        ),
    ]


def none_wanted(name: str, writes: Sequence[Write]) -> Figure:
    """Against one write, because there is no ratio to none."""
    return measured(name, ours=[float(len(writes))], other=[1.0], unit="writes", target=0.0)


def of(told: Sequence[Told], key: str) -> list[float]:
    return [each[key] for each in told]
