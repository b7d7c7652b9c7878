"""A worker of a simulated launcher: what it does, and what its node's agent sees of that."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from holdfast.api.rankrecord import Phase
from holdfast.api.round import Round
from holdfast.api.telemetry import ProcessState, RankSample

if TYPE_CHECKING:
    from holdfast.simulator.world.member import SimulatedMember


class Worker(Enum):
    RUNNING = "running"
    STOPPED = "stopped"
    STUCK = "stuck"  # it runs, and does not get to where the others wait
    DEAD = "dead"


STATES: Final = {
    Worker.RUNNING: ProcessState.RUNNING,
    Worker.STOPPED: ProcessState.STOPPED,
    Worker.STUCK: ProcessState.RUNNING,
    Worker.DEAD: ProcessState.GONE,
}
# Where a worker is in its step when nobody makes one; who waits for others does so in the backward pass.
PHASES: Final = {Worker.STUCK: Phase.FORWARD}


def first_records(member: SimulatedMember, round: Round, age_s: float) -> tuple[RankSample, ...]:
    """What the launcher has written of the member's workers before they publish anything themselves."""
    first = member.first_rank(round)
    return tuple(
        RankSample(round.number, first + local, STATES[worker], Phase.IDLE, age_s, age_s)
        for local, worker in enumerate(member.workers)
    )
