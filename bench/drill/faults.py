"""The faults: each is put into a fleet that trains, and waits for what it is to come to."""

import os
import signal
import time
from typing import Final

from drill.fleet import Fleet
from drill.orchestrated import HoldfastFleet
from drill.outcome import Outcome
from drill.processes import signal_each
from drill.steplog import NS_PER_S, longest_gap_s, lost_steps, p99_step_s, recovered_ns, still_ns
from holdfast.api.incident import Incident

WATCHED_S: Final = 3.0  # about a hundred steps: as long as the watchdog's absence, and as long before it
AWAY_S: Final = 1.0
WARMS_UP_S: Final = 20.0  # a node that waits imports what a script needs
HANG_LIMIT_S: Final = 2.0
HANG_LIMIT_STEPS: Final = 5


def worker_killed(fleet: Fleet, cap_s: float) -> Outcome:
    """SIGKILL of one rank, not on the host, until every rank of a whole world has trained a step again."""
    victim = fleet.worker_on(fleet.other_than_host())
    fault_ns = time.monotonic_ns()
    os.kill(victim.pid, signal.SIGKILL)
    return _recovery(fleet, fault_ns, cap_s, nodes=2)


def node_killed(fleet: Fleet, cap_s: float) -> Outcome:
    """SIGKILL of everything on a node that is not the host: its connections close. The other goes on alone."""
    return _node_lost(fleet, fleet.other_than_host(), cap_s)


def node_replaced(fleet: Fleet, cap_s: float) -> Outcome:
    """The same with a third node that has come to wait: as many go on as before."""
    doomed = fleet.other_than_host()
    fleet.start_node(2)
    fleet.wait_for(lambda: None, WARMS_UP_S)
    return _node_lost(fleet, doomed, cap_s, left=2)


def host_killed(fleet: Fleet, cap_s: float) -> Outcome:
    """The same for the host, where stock torchrun keeps its store and rank 0 the process group's."""
    return _node_lost(fleet, fleet.host(), cap_s)


def node_silenced(fleet: Fleet, cap_s: float) -> Outcome:
    """SIGSTOP of everything on a node: connections stay open, nobody answers. Seconds until it is named."""
    assert isinstance(fleet, HoldfastFleet), "stock torchrun does not say what it noticed"
    number = fleet.other_than_host()
    doomed = fleet.node_processes(number)
    fault_ns = time.monotonic_ns()
    signal_each(doomed, signal.SIGSTOP)
    named = fleet.wait_for(lambda: _naming(fleet, node=f"node-{number}"), cap_s)
    seen_ns = time.monotonic_ns()
    healed = _recovery(fleet, fault_ns, cap_s, nodes=1)
    return Outcome(
        seconds=None if named is None else (seen_ns - fault_ns) / NS_PER_S,
        cap_s=cap_s,
        lost_steps=healed.lost_steps,
        note=f"first new step after {healed}",
    )


def worker_stopped(fleet: Fleet, cap_s: float) -> Outcome:
    """SIGSTOP of one rank, not on the host, until it is named (by Holdfast) and all ranks train again."""
    limit_s = max(HANG_LIMIT_S, HANG_LIMIT_STEPS * p99_step_s(fleet.log.marks()))
    victim = fleet.worker_on(fleet.other_than_host())
    fault_ns = time.monotonic_ns()
    os.kill(victim.pid, signal.SIGSTOP)
    healed = _recovery(fleet, fault_ns, cap_s, nodes=2)
    named = _naming(fleet, rank=victim.rank) if isinstance(fleet, HoldfastFleet) else None
    stock = not isinstance(fleet, HoldfastFleet)
    return Outcome(
        seconds=healed.seconds if named or stock else None,
        cap_s=cap_s,
        limit_s=limit_s,
        lost_steps=healed.lost_steps,
        note=f"named as {named.kind}" if named else "not named",
    )


def node_joins(fleet: Fleet, cap_s: float) -> Outcome:
    """Node 1 comes to a job that trains on node 0: how long nothing is trained."""
    asked_ns = time.monotonic_ns()
    fleet.start_node(1)
    world = 2 * fleet.terms.shape.local_size
    still = fleet.wait_for(lambda: still_ns(fleet.log.marks(), after_ns=asked_ns, world=world), cap_s)
    return Outcome(seconds=None if still is None else still / NS_PER_S, cap_s=cap_s)


def watchdog_away(fleet: Fleet, cap_s: float) -> Outcome:
    """SIGKILL of the watchdog and its restart: the longest gap between two steps meanwhile, and before."""
    assert isinstance(fleet, HoldfastFleet), "only Holdfast has a watchdog"
    began_ns = time.monotonic_ns()
    time.sleep(WATCHED_S)
    killed_ns = time.monotonic_ns()
    fleet.kill_watchdog()
    time.sleep(AWAY_S)
    fleet.start_watchdog()
    over_ns = killed_ns + int(WATCHED_S * NS_PER_S)
    time.sleep(max(0.0, (over_ns - time.monotonic_ns()) / NS_PER_S))
    marks = fleet.log.marks()
    return Outcome(
        seconds=longest_gap_s(marks, from_ns=killed_ns, to_ns=over_ns),
        cap_s=cap_s,
        limit_s=longest_gap_s(marks, from_ns=began_ns, to_ns=killed_ns),
    )


def watchdog_restarts(fleet: Fleet, cap_s: float) -> Outcome:
    """A worker dies while the watchdog is away: from the watchdog's new start until the fault is healed."""
    assert isinstance(fleet, HoldfastFleet), "only Holdfast has a watchdog"
    victim = fleet.worker_on(fleet.other_than_host())
    fleet.kill_watchdog()
    fault_ns = time.monotonic_ns()
    os.kill(victim.pid, signal.SIGKILL)
    time.sleep(AWAY_S)
    restarted_ns = time.monotonic_ns()
    fleet.start_watchdog()
    healed = _recovery(fleet, fault_ns, cap_s, nodes=2)
    if healed.seconds is None:
        return healed
    away_s = (restarted_ns - fault_ns) / NS_PER_S
    return Outcome(seconds=healed.seconds - away_s, cap_s=cap_s, lost_steps=healed.lost_steps)


def _node_lost(fleet: Fleet, number: int, cap_s: float, *, left: int = 1) -> Outcome:
    doomed = fleet.node_processes(number)
    fault_ns = time.monotonic_ns()
    signal_each(doomed, signal.SIGKILL)
    return _recovery(fleet, fault_ns, cap_s, nodes=left)


def _recovery(fleet: Fleet, fault_ns: int, cap_s: float, *, nodes: int) -> Outcome:
    """Wait until `nodes` nodes train again; seconds are counted from the fault."""
    world = nodes * fleet.terms.shape.local_size
    at_ns = fleet.wait_for(lambda: recovered_ns(fleet.log.marks(), after_ns=fault_ns, world=world), cap_s)
    if at_ns is None:
        return Outcome(seconds=None, cap_s=cap_s)
    lost = lost_steps(fleet.log.marks(), fault_ns=fault_ns, recovered_at_ns=at_ns)
    return Outcome(seconds=(at_ns - fault_ns) / NS_PER_S, cap_s=cap_s, lost_steps=lost)


def _naming(fleet: HoldfastFleet, *, node: str | None = None, rank: int | None = None) -> Incident | None:
    """The incident that blames this node or this rank."""
    for incident in fleet.incidents():
        culprit = incident.culprit
        if (node is not None and culprit.node == node) or (rank is not None and culprit.rank == rank):
            return incident
    return None
