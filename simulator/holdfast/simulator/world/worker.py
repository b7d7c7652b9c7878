"""A worker of a simulated launcher: what it does, and what its node's agent sees of that."""

from enum import Enum
from typing import Final

from holdfast.api.rankrecord import Phase
from holdfast.api.telemetry import ProcessState


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
