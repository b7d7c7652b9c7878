"""Which of the hosts there are run a launcher. Pure and level-triggered.

Hosts are given once and never replaced: what the plan wants is placed on those that are left. One whose launcher
ended is tried again after a rest, which doubles as long as launchers end at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.api.plan import NodeState, Plan
from holdfast.cli.hosts.reach import READY, Standing

REST_FIRST_S: Final = 2.0
REST_MOST_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Host:
    """One host, and what is said of it. `is_up`: its program runs. `rests_until` is in monotonic seconds."""

    name: str
    is_up: bool = False
    standing: Standing = READY
    rests_until: float = 0.0


@dataclass(frozen=True, slots=True)
class Start:
    """Start the host's program."""

    name: str


@dataclass(frozen=True, slots=True)
class Stop:
    """End the host's program."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now, and when to look again (None: when something changes)."""

    actions: tuple[Start | Stop, ...] = ()
    next_wakeup: float | None = None


def decide(hosts: Sequence[Host], plan: Plan, now: float) -> Decision:
    """What makes the hosts match `plan`. A host stopped now shows as not up in the next observation."""
    kept_away = {order.node: order.reason for order in (*plan.avoid, *plan.cordon)}
    up = [host for host in hosts if host.is_up]
    wanted = plan.members + plan.spares
    stops = []
    kept = []
    for host in up:
        if host.name in kept_away:
            stops.append(Stop(host.name, kept_away[host.name]))
        elif host.standing.state is NodeState.GONE:
            stops.append(Stop(host.name, host.standing.reason))
        elif host.name in plan.release:
            stops.append(Stop(host.name, "its ranks went elsewhere"))
        else:
            kept.append(host.name)
    stops += [Stop(name, f"the plan wants {wanted} nodes") for name in reversed(kept[wanted:])]
    if stops:
        return Decision(tuple(stops), next_wakeup=now)
    usable = [host for host in hosts if host.standing.takes_work and host.name not in kept_away]
    idle = [host for host in usable if not host.is_up]
    # Who rested longest comes first; those that never failed, in the order in which they were given.
    due = sorted((host for host in idle if host.rests_until <= now), key=lambda host: host.rests_until)
    starts = tuple(Start(host.name) for host in due[: max(0, wanted - len(up))])
    if len(up) + len(starts) >= wanted:
        return Decision(starts)
    return Decision(starts, min((host.rests_until for host in idle if host.rests_until > now), default=None))


def shortage(hosts: Sequence[Host], plan: Plan, least: int) -> str | None:
    """Why the hosts can hold the job no more, however long it waits; None while they can.

    A host that does not answer counts: it may come back. One that somebody drains, that is gone, or that the plan
    keeps away from does not.
    """
    kept_away = {order.node for order in (*plan.avoid, *plan.cordon)}
    lost = (NodeState.GONE, NodeState.DRAINING)
    left = [host.name for host in hosts if host.name not in kept_away and host.standing.state not in lost]
    if len(left) >= least:
        return None
    return f"{len(left)} of {len(hosts)} nodes can be used, and the job needs {least}"
