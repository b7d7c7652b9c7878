"""Conditions: what can be wrong with a node for a while, what each means, and what a running job does about it.

An XID happens once; a condition holds until it is over. An agent reports every condition that holds, and one that
is over as cleared: by the rule in its row, never by falling silent. A source that cannot be read says nothing
about its conditions; what was raised before stays raised. What an earlier run of an agent had raised, and this one
does not know of, ends when it says that nothing of the kind holds, by the same rule.

    NVIDIA  https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html (row remapping, containment)
    RSC     https://arxiv.org/abs/2410.21680 (health checks and lemon nodes of two research clusters)
    DELTA   https://arxiv.org/abs/2503.11901 (2.5 years of A100 and H100 errors)
    MINDER  https://arxiv.org/abs/2411.01791 (PCIe that came down to a lower rate, and what it costs)
    AEGIS   https://www.usenix.org/conference/nsdi25/presentation/dong (links and network cards of a large fleet)
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated

import msgspec

from holdfast.api.bounds import Many, Name, Seconds, Text
from holdfast.api.policy import XidAction
from holdfast.api.xid import Recovery

NVIDIA = "https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html"
RSC = "https://arxiv.org/abs/2410.21680"
DELTA = "https://arxiv.org/abs/2503.11901"
MINDER = "https://arxiv.org/abs/2411.01791"
AEGIS = "https://www.usenix.org/conference/nsdi25/presentation/dong"


class ConditionKind(StrEnum):
    """What can hold of a GPU, a link or the node itself."""

    ECC_UNCORRECTED = "EccUncorrected"
    ECC_CORRECTED_STORM = "EccCorrectedStorm"
    ROW_REMAP_PENDING = "RowRemapPending"
    ROW_REMAP_FAILED = "RowRemapFailed"
    PAGE_RETIREMENT_PENDING = "PageRetirementPending"
    RECOVERY_NEEDED = "RecoveryNeeded"
    PCIE_DEGRADED = "PcieDegraded"
    PCIE_REPLAYS = "PcieReplays"
    NVLINK_DOWN = "NvlinkDown"
    NVLINK_ERRORS = "NvlinkErrors"
    POWER_BRAKE = "PowerBrake"
    NVSWITCH_FAULT = "NvswitchFault"
    PCIE_FATAL = "PcieFatal"
    HOST_MEMORY_ERROR = "HostMemoryError"
    LINK_DOWN = "LinkDown"
    LINK_FLAPPING = "LinkFlapping"
    LINK_ERRORS = "LinkErrors"
    LINK_DEGRADED = "LinkDegraded"
    DISK_FULL = "DiskFull"
    DISK_READ_ONLY = "DiskReadOnly"
    MEMORY_LOW = "MemoryLow"
    CLOCK_UNSYNCHRONISED = "ClockUnsynchronised"


class ConditionState(StrEnum):
    """Whether it holds."""

    RAISED = "Raised"
    CLEARED = "Cleared"


class Condition(msgspec.Struct, frozen=True, omit_defaults=True):
    """One condition, as an agent sees it. `age_s` is since it was raised, or cleared.

    `gpu` is the UUID of the GPU it concerns, `device` a link, port or file system; both empty: the node.
    """

    kind: ConditionKind
    state: ConditionState
    age_s: Seconds
    says: Text
    gpu: Name = ""
    device: Name = ""


class AllClear(msgspec.Struct, frozen=True, omit_defaults=True):
    """By the rule in its row nothing of a kind holds on a node, whether or not its agent had ever raised it.

    That counts for all its parts `but` these (GPU and device, as in `Condition`): there it holds, or the rule was
    not met since the agent started.
    """

    kind: ConditionKind
    but: Annotated[tuple[tuple[Name, Name], ...], Many] = ()


class ConditionEntry(msgspec.Struct, frozen=True):
    """One row. `clears` is the rule by which the agent says that it is over."""

    kind: ConditionKind
    meaning: str
    action: XidAction
    recovery: Recovery
    clears: str
    source: str


_WATCH, _RESTART, _EVICT = XidAction.WATCH, XidAction.RESTART, XidAction.EVICT
_NOTHING, _RESET, _REBOOT, _REPLACE = Recovery.NOTHING, Recovery.RESET_GPU, Recovery.REBOOT_NODE, Recovery.REPLACE
_GONE = "the counter is zero again, which a reset of the GPU brings"

_ROWS = (
    # XID 48, 94 or 95 comes with it and says whether the error was contained, which decides; the counter stays.
    ConditionEntry(
        ConditionKind.ECC_UNCORRECTED,
        "memory errors that could not be corrected since the driver was loaded",
        _WATCH,
        _RESET,
        _GONE,
        NVIDIA,
    ),
    ConditionEntry(
        ConditionKind.ECC_CORRECTED_STORM,
        "corrected memory errors come at a high rate",
        _WATCH,
        _RESET,
        "an hour below a tenth of the rate that raised it",
        DELTA,
    ),
    ConditionEntry(
        ConditionKind.ROW_REMAP_PENDING,
        "a memory row is to be remapped at the next reset",
        _WATCH,
        _RESET,
        "the driver says that none is pending",
        NVIDIA,
    ),
    ConditionEntry(
        ConditionKind.ROW_REMAP_FAILED,
        "a memory row could not be remapped",
        _EVICT,
        _REPLACE,
        "the driver says that none failed",
        NVIDIA,
    ),
    ConditionEntry(
        ConditionKind.PAGE_RETIREMENT_PENDING,
        "a memory page is to be retired at the next reset",
        _WATCH,
        _RESET,
        "the driver says that none is pending",
        NVIDIA,
    ),
    ConditionEntry(
        ConditionKind.RECOVERY_NEEDED,
        "the driver says that the GPU needs a recovery before it is used again",
        _EVICT,
        _RESET,
        "the driver asks for no recovery",
        "https://nvidia.github.io/cuda-python/cuda-bindings/latest/module/nvml.html",
    ),
    ConditionEntry(
        ConditionKind.PCIE_DEGRADED,
        "the GPU's PCIe link is narrower or slower than it was made for, while it works",
        _EVICT,
        _REBOOT,
        "full width and generation under load for a minute",
        MINDER,
    ),
    ConditionEntry(
        ConditionKind.PCIE_REPLAYS,
        "the PCIe link repeats what it sent at a high rate",
        _WATCH,
        _NOTHING,
        "an hour below a tenth of the rate that raised it",
        MINDER,
    ),
    ConditionEntry(
        ConditionKind.NVLINK_DOWN,
        "an NVLink that was up is down",
        _EVICT,
        _RESET,
        "the link is up for a minute",
        DELTA,
    ),
    ConditionEntry(
        ConditionKind.NVLINK_ERRORS,
        "an NVLink replays or recovers at a high rate",
        _WATCH,
        _RESET,
        "an hour below a tenth of the rate that raised it",
        DELTA,
    ),
    ConditionEntry(
        ConditionKind.POWER_BRAKE,
        "the power supply holds the GPU's clocks down",
        _WATCH,
        _NOTHING,
        "a minute without the brake",
        RSC,
    ),
    ConditionEntry(
        ConditionKind.NVSWITCH_FAULT,
        "an NVSwitch raised a fatal error",
        _EVICT,
        _REBOOT,
        "the node has booted since",
        AEGIS,
    ),
    # A device that matters and did not come back says so itself: as a lost GPU or a port that is down.
    ConditionEntry(
        ConditionKind.PCIE_FATAL,
        "a PCIe device raised a fatal error",
        _WATCH,
        _REBOOT,
        "the node has booted since",
        "https://docs.kernel.org/PCI/pcieaer-howto.html",
    ),
    ConditionEntry(
        ConditionKind.HOST_MEMORY_ERROR,
        "the processor or its memory had an error that could not be corrected",
        _EVICT,
        _REPLACE,
        "the node has booted since",
        RSC,
    ),
    ConditionEntry(
        ConditionKind.LINK_DOWN,
        "a network port that was up is down",
        _EVICT,
        _NOTHING,
        "the port is up for a minute",
        AEGIS,
    ),
    ConditionEntry(
        ConditionKind.LINK_FLAPPING,
        "a network port goes down and up again and again",
        _WATCH,
        _NOTHING,
        "an hour without a change",
        AEGIS,
    ),
    ConditionEntry(
        ConditionKind.LINK_ERRORS,
        "a network port counts errors at a high rate",
        _WATCH,
        _NOTHING,
        "an hour below a tenth of the rate that raised it",
        AEGIS,
    ),
    ConditionEntry(
        ConditionKind.LINK_DEGRADED,
        "a network port runs slower than it did, or than others of its kind",
        _WATCH,
        _NOTHING,
        "full rate for a minute",
        AEGIS,
    ),
    ConditionEntry(
        ConditionKind.DISK_FULL,
        "the file system for checkpoints and logs is nearly full",
        _WATCH,
        _NOTHING,
        "a tenth more is free than when it was raised",
        RSC,
    ),
    ConditionEntry(
        ConditionKind.DISK_READ_ONLY,
        "a file system that took writes takes no more",
        _WATCH,
        _NOTHING,
        "it takes writes again",
        RSC,
    ),
    ConditionEntry(
        ConditionKind.MEMORY_LOW,
        "the node's memory is nearly used up",
        _WATCH,
        _NOTHING,
        "a tenth more is free than when it was raised",
        RSC,
    ),
    ConditionEntry(
        ConditionKind.CLOCK_UNSYNCHRONISED,
        "the node's clock is not synchronised",
        _WATCH,
        _NOTHING,
        "the kernel says that it is synchronised",
        RSC,
    ),
)

CONDITIONS: Mapping[ConditionKind, ConditionEntry] = MappingProxyType({row.kind: row for row in _ROWS})


def condition_action(kind: ConditionKind, overrides: Mapping[ConditionKind, XidAction]) -> XidAction:
    """What a running job does about a condition: the job's own word, else the row's."""
    return overrides.get(kind, CONDITIONS[kind].action)
