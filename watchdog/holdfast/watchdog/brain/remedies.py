"""What would bring a node back that was left for a fault: told to whoever repairs nodes, and decided here only."""

from collections.abc import Mapping
from types import MappingProxyType

from holdfast.api.condition import CONDITIONS, ConditionKind
from holdfast.api.finding import Finding, FindingKind
from holdfast.api.xid import CATALOGUE, Recovery, RecoveryAction

# What the driver asks for of this very GPU comes before the catalogue's row.
_OF_DRIVER: Mapping[int, Recovery] = MappingProxyType(
    {
        RecoveryAction.GPU_RESET: Recovery.RESET_GPU,
        RecoveryAction.NODE_REBOOT: Recovery.REBOOT_NODE,
        RecoveryAction.DRAIN_AND_RESET: Recovery.RESET_GPU,
    }
)
# A GPU that fell off the bus answers no reset. What arithmetic proved wrong is wrong after a boot, too. Heat comes
# from outside: nothing that is done to the node takes it away.
_OF_KIND: Mapping[FindingKind, Recovery] = MappingProxyType(
    {
        FindingKind.GPU_LOST: Recovery.REBOOT_NODE,
        FindingKind.SELF_TEST: Recovery.REPLACE,
        FindingKind.CORRUPTION: Recovery.REPLACE,
        FindingKind.THERMAL: Recovery.NOTHING,
        FindingKind.HANG: Recovery.REBOOT_NODE,
        FindingKind.MEMBER_LOST: Recovery.REBOOT_NODE,
        FindingKind.PROCESS_EXIT: Recovery.REBOOT_NODE,
    }
)


def remedy_of(finding: Finding) -> Recovery:
    """What the node needs before it is used again; NOTHING where nobody can tell."""
    if finding.remedy is not None:
        return finding.remedy
    if finding.recovery_action is not None and finding.recovery_action in _OF_DRIVER:
        return _OF_DRIVER[finding.recovery_action]
    if finding.kind is FindingKind.XID:
        entry = CATALOGUE.get(finding.xid or 0)
        return Recovery.REBOOT_NODE if entry is None else entry.recovery
    if finding.kind is FindingKind.CONDITION and finding.cause in ConditionKind._value2member_map_:
        return CONDITIONS[ConditionKind(finding.cause)].recovery
    return _OF_KIND.get(finding.kind, Recovery.NOTHING)
