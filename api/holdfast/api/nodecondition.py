"""Conditions that others set on a node, as Holdfast takes them: what each means to a job, and what it is about.

Node problem detectors, cloud agents and remediators write `status.conditions` of nodes. A map says which of them
count; what a map makes of one travels from the operator to the watchdog like any other observation.
"""

import re
from enum import StrEnum
from typing import Final

import msgspec

from holdfast.api.bounds import Name, Text

CAUSE_PREFIX = "node condition "
# What a job's own processes can bring about: an XID by a faulty kernel (the agent judges by its number; an SXID is
# a switch's), and a node that they leave no memory, no processes or no disk, with what suffers from that.
_BY_JOBS: Final = re.compile(
    r"(.*[^S])?[Xx][Ii][Dd].*|(Memory|PID|Disk)Pressure|(Kubelet|ContainerRuntime)(Unhealthy|Problem|Ready)"
)


class Meaning(StrEnum):
    """What a condition of others means to Holdfast, the least first."""

    IGNORE = "ignore"  # nothing
    EVIDENCE = "evidence"  # it is told beside what Holdfast finds itself
    SUSPECT = "suspect"  # it is reported, and the third time within a day the job leaves the node
    EVICT = "evict"  # the job leaves the node


class FaultPart(StrEnum):
    """What of the node it is about. MAINTENANCE is no fault: somebody is about to take the machine away."""

    GPU = "gpu"
    LINK = "link"
    MEMORY = "memory"
    DISK = "disk"
    KERNEL = "kernel"
    RUNTIME = "runtime"  # the kubelet or the container runtime
    MAINTENANCE = "maintenance"


def is_by_jobs(cause: str) -> bool:
    """Whether a job can bring about the condition of others that findings and incidents have as this cause."""
    return cause.startswith(CAUSE_PREFIX) and _BY_JOBS.fullmatch(cause.removeprefix(CAUSE_PREFIX)) is not None


class NodeCondition(msgspec.Struct, frozen=True, omit_defaults=True):
    """One that holds: its type and reason as its author wrote them, `says` the message, `since` its transition
    time.

    With another `since` it was raised anew. It is a text, and compared for being the same only: no clock of
    another machine is reckoned with.
    """

    type: Name
    means: Meaning
    part: FaultPart
    reason: Name = ""
    says: Text = ""
    since: Name = ""

    @property
    def cause(self) -> str:
        """As findings and incidents have it."""
        return f"{CAUSE_PREFIX}{self.type}"
