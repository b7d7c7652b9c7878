"""What a job's word about a class of faults asks of the brain, and whether it is its word alone."""

from collections.abc import Mapping
from types import MappingProxyType

from holdfast.api.policy import FaultAction, XidAction


def is_own_rule(own: XidAction, standing: XidAction) -> bool:
    """Whether it is the job's own spec alone that makes so much of something, and not what stands for all jobs."""
    return own is not standing and standing is not XidAction.EVICT


# WATCH asks for nothing but a record.
ASKS: Mapping[FaultAction, XidAction] = MappingProxyType(
    {
        FaultAction.REPORT: XidAction.WATCH,
        FaultAction.RESTART: XidAction.RESTART,
        FaultAction.EVICT: XidAction.EVICT,
    }
)
