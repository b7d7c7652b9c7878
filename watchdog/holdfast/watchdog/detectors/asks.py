"""What a job's word about a class of faults asks of the brain."""

from collections.abc import Mapping
from types import MappingProxyType

from holdfast.api.policy import FaultAction, XidAction

# WATCH asks for nothing but a record.
ASKS: Mapping[FaultAction, XidAction] = MappingProxyType(
    {
        FaultAction.REPORT: XidAction.WATCH,
        FaultAction.RESTART: XidAction.RESTART,
        FaultAction.EVICT: XidAction.EVICT,
    }
)
