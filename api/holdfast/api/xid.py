"""The XID catalogue: what the NVIDIA driver's error numbers mean, and what a running job does about each.

Data, not code: a row per number with its meaning, what it says about hardware or software, what brings the GPU
back, the default action, and where that comes from. A job overrides the action of any number in
`faultPolicy.xid`. Published sources disagree about several rows (31, 38, 44, 61, 63, 69, 109, 121); where they do,
the default is the milder one, and repetition makes up for it.

    NVIDIA  https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html (Ampere and newer)
    GPUD    https://github.com/leptonai/gpud, components/accelerator/nvidia/xid
    GCM     https://facebookresearch.github.io/gcm/docs/GCM_Health_Checks/health_checks/check-syslogs/xid
    DELTA   https://arxiv.org/abs/2503.11901

XID 13, 31 and 79 evict whatever the run state: of 13 and 31 the number alone does not tell hardware from software,
a wrong eviction costs one spare, and a wrong restart costs the run again. The same number on a second node
exonerates both nodes, unless the row blames hardware. That is decided where the history is, not here.
"""

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from types import MappingProxyType

import msgspec

from holdfast.api.policy import XidAction

NVIDIA = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"
GPUD = "https://github.com/leptonai/gpud"
GCM = "https://facebookresearch.github.io/gcm/docs/GCM_Health_Checks/health_checks/check-syslogs/xid"
DELTA = "https://arxiv.org/abs/2503.11901"

# The driver's own statement of what a GPU needs next; carries a recovery action.
RECOVERY_ACTION_CHANGED = 154
# Raised when a channel is torn down after another error, or because a process was killed: never a cause.
PREEMPTIVE_CLEANUP = 45


class XidClass(StrEnum):
    """What an XID says about where the fault lies."""

    HARDWARE = "Hardware"
    SOFTWARE = "Software"
    EITHER = "Either"


class Recovery(StrEnum):
    """What brings the GPU back."""

    NOTHING = "Nothing"
    RESTART_PROCESS = "RestartProcess"
    RESET_GPU = "ResetGpu"
    REBOOT_NODE = "RebootNode"
    REPLACE = "Replace"


class RecoveryAction(IntEnum):
    """What the driver says a GPU needs, as XID 154 and NVML tell it.

    Source: nvmlDeviceGpuRecoveryAction_t,
    https://nvidia.github.io/cuda-python/cuda-bindings/latest/module/generated/cuda.bindings.nvml.DeviceGpuRecoveryAction.html
    """

    NONE = 0
    GPU_RESET = 1
    NODE_REBOOT = 2
    DRAIN_P2P = 3
    DRAIN_AND_RESET = 4
    RECOVER_IMEX_DOMAIN = 5
    BUS_RESET = 6
    SYSTEM_REBOOT = 7


class XidEntry(msgspec.Struct, frozen=True):
    """One row. `action` is the running job's default, `recovery` what the GPU needs before it is used again."""

    xid: int
    meaning: str
    action: XidAction
    blames: XidClass
    recovery: Recovery
    source: str


def action_for(xid: int, recovery_action: int | None, overrides: Mapping[int, XidAction]) -> XidAction:
    """What a running job does about `xid`.

    The job's own override comes first: a human's word about this number. Next what the driver says of this very
    GPU: any recovery it asks for needs the GPU drained, so the node leaves. Only then the catalogue. A number
    the catalogue does not know is watched: Unknown neither passes for harmless nor evicts on its own.
    """
    if xid in overrides:
        return overrides[xid]
    if recovery_action in _DRAINING:
        return XidAction.EVICT
    entry = CATALOGUE.get(xid)
    return XidAction.WATCH if entry is None else entry.action


def meaning_of(xid: int) -> str:
    """The row's meaning in a few words."""
    entry = CATALOGUE.get(xid)
    return "not in the catalogue" if entry is None else entry.meaning


_DRAINING = frozenset(RecoveryAction) - {RecoveryAction.NONE}

_IGNORE, _WATCH, _RESTART, _EVICT = XidAction.IGNORE, XidAction.WATCH, XidAction.RESTART, XidAction.EVICT
_HARD, _SOFT, _EITHER = XidClass.HARDWARE, XidClass.SOFTWARE, XidClass.EITHER
_PROCESS, _RESET, _REBOOT = Recovery.RESTART_PROCESS, Recovery.RESET_GPU, Recovery.REBOOT_NODE
_NOTHING, _REPLACE = Recovery.NOTHING, Recovery.REPLACE

_ROWS = (
    XidEntry(8, "GPU stopped processing", _RESTART, _EITHER, _PROCESS, NVIDIA),
    XidEntry(13, "graphics engine exception", _EVICT, _EITHER, _PROCESS, NVIDIA),
    XidEntry(31, "GPU memory page fault", _EVICT, _EITHER, _PROCESS, NVIDIA),
    XidEntry(32, "corrupted push buffer stream", _RESTART, _EITHER, _PROCESS, NVIDIA),
    XidEntry(38, "driver firmware error", _WATCH, _EITHER, _NOTHING, NVIDIA),
    XidEntry(43, "GPU stopped processing, reset of one channel", _RESTART, _SOFT, _PROCESS, GCM),
    XidEntry(44, "fault during a context switch", _WATCH, _EITHER, _NOTHING, NVIDIA),
    # Every worker that is killed may raise it, so that watching it would evict healthy nodes.
    XidEntry(PREEMPTIVE_CLEANUP, "preemptive cleanup after another error", _IGNORE, _SOFT, _NOTHING, DELTA),
    XidEntry(46, "GPU stopped processing, time-out", _EVICT, _HARD, _RESET, NVIDIA),
    XidEntry(48, "double-bit memory error", _EVICT, _HARD, _RESET, NVIDIA),
    XidEntry(61, "power management unit breakpoint", _EVICT, _HARD, _RESET, GPUD),
    XidEntry(62, "power management unit halted", _EVICT, _HARD, _RESET, NVIDIA),
    # The remap takes effect at the next reset; until then the GPU is sound.
    XidEntry(63, "memory row remap recorded", _IGNORE, _HARD, _NOTHING, NVIDIA),
    XidEntry(64, "memory row remap failed", _EVICT, _HARD, _REPLACE, NVIDIA),
    XidEntry(68, "video decoder exception", _RESTART, _EITHER, _PROCESS, NVIDIA),
    XidEntry(69, "graphics engine class error", _RESTART, _EITHER, _PROCESS, NVIDIA),
    XidEntry(74, "NVLink error", _EVICT, _HARD, _RESET, NVIDIA),
    XidEntry(79, "GPU has fallen off the bus", _EVICT, _HARD, _REBOOT, NVIDIA),
    XidEntry(92, "high single-bit error rate", _IGNORE, _HARD, _NOTHING, NVIDIA),
    XidEntry(94, "contained memory error", _RESTART, _HARD, _PROCESS, NVIDIA),
    XidEntry(95, "uncontained memory error", _EVICT, _HARD, _RESET, NVIDIA),
    XidEntry(109, "context switch time-out", _RESTART, _EITHER, _PROCESS, GCM),
    XidEntry(110, "security fault", _EVICT, _HARD, _RESET, NVIDIA),
    XidEntry(119, "GPU system processor does not answer", _EVICT, _EITHER, _RESET, NVIDIA),
    XidEntry(120, "GPU system processor error", _EVICT, _EITHER, _RESET, NVIDIA),
    XidEntry(121, "chip-to-chip link error", _WATCH, _HARD, _NOTHING, NVIDIA),
    XidEntry(140, "unrecovered memory error", _EVICT, _HARD, _RESET, NVIDIA),
    XidEntry(143, "GPU initialisation error", _EVICT, _HARD, _RESET, NVIDIA),
    # 144 to 150 are fatal or not depending on status words the number does not carry; XID 154 follows a fatal one.
    XidEntry(144, "NVLink 5 SAW error", _WATCH, _HARD, _RESET, NVIDIA),
    XidEntry(145, "NVLink 5 RLW error", _WATCH, _HARD, _RESET, NVIDIA),
    XidEntry(146, "NVLink 5 TLW error", _WATCH, _HARD, _RESET, NVIDIA),
    XidEntry(147, "NVLink 5 TREX error", _WATCH, _HARD, _NOTHING, NVIDIA),
    XidEntry(148, "NVLink 5 NVLPW control error", _WATCH, _HARD, _NOTHING, NVIDIA),
    XidEntry(149, "NVLink 5 NETIR error", _WATCH, _HARD, _RESET, NVIDIA),
    XidEntry(150, "NVLink 5 MSE error", _WATCH, _HARD, _RESET, NVIDIA),
    # Without an action, or with NONE, it says that the GPU needs nothing.
    XidEntry(RECOVERY_ACTION_CHANGED, "GPU recovery action changed", _IGNORE, _HARD, _NOTHING, NVIDIA),
    XidEntry(155, "NVLink software error", _EVICT, _EITHER, _RESET, NVIDIA),
    XidEntry(156, "resource retired", _IGNORE, _HARD, _NOTHING, NVIDIA),
    XidEntry(157, "resource retirement failed", _EVICT, _HARD, _REPLACE, NVIDIA),
    XidEntry(158, "fatal time-out", _EVICT, _HARD, _RESET, NVIDIA),
    XidEntry(167, "fatal PCIe time-out", _EVICT, _HARD, _REBOOT, NVIDIA),
    XidEntry(169, "security processor halted", _EVICT, _HARD, _RESET, NVIDIA),
    XidEntry(171, "detail of a memory error: DRAM", _IGNORE, _HARD, _NOTHING, NVIDIA),
    XidEntry(172, "detail of a memory error: SRAM", _IGNORE, _HARD, _NOTHING, NVIDIA),
)

CATALOGUE: Mapping[int, XidEntry] = MappingProxyType({row.xid: row for row in _ROWS})
