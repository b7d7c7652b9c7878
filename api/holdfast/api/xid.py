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

from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum, StrEnum
from types import MappingProxyType

import msgspec

from holdfast.api.nvlink5 import LinkFault, link_action
from holdfast.api.policy import XidAction

NVIDIA = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"
GPUD = "https://github.com/leptonai/gpud"
GCM = "https://facebookresearch.github.io/gcm/docs/GCM_Health_Checks/health_checks/check-syslogs/xid"
DELTA = "https://arxiv.org/abs/2503.11901"

# The driver's own statement of what a GPU needs next; carries a recovery action.
RECOVERY_ACTION_CHANGED = 154
# Raised when a channel is torn down after another error, or because a process was killed: never a cause.
PREEMPTIVE_CLEANUP = 45
FELL_OFF_THE_BUS = 79


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


def action_for(
    xid: int,
    recovery_action: int | None,
    overrides: Mapping[int, XidAction],
    link_fault: LinkFault | None = None,
) -> XidAction:
    """What a running job does about `xid`.

    The job's own override comes first: a human's word about this number. Next what the driver says of this very
    GPU: any recovery it asks for needs the GPU drained, so the node leaves. Then the status words of an NVLink 5
    error, and only then the catalogue. A number the catalogue does not know is watched: Unknown neither passes
    for harmless nor evicts on its own.
    """
    if xid in overrides:
        return overrides[xid]
    if recovery_action in _DRAINING:
        return XidAction.EVICT
    decoded = None if link_fault is None else link_action(xid, link_fault)
    if decoded is not None:
        return decoded
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


def _alike(
    xids: Iterable[int],
    meaning: str,
    action: XidAction,
    blames: XidClass,
    recovery: Recovery,
) -> Iterator[XidEntry]:
    """Several numbers for one thing, as a GPU has several engines of a kind."""
    return (XidEntry(xid, meaning, action, blames, recovery, NVIDIA) for xid in xids)


_COPY_ENGINES = (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136))
_VIDEO_DECODERS = (68, 83, 84, 88, 89, 96, 97, 98)
_JPEG_DECODERS = (82, *range(99, 106))
# Listed as unused on Ampere and newer; several meant something on older GPUs.
_UNUSED = (
    *(*range(1, 8), 9, 10, 12, *range(14, 25), *range(26, 31), *range(33, 37), 42, 47, *range(49, 54)),
    *(*range(55, 60), 65, 73, 81, 87, 90, 91, 108, *range(111, 119), *range(122, 126), 138),
)

_ROWS = (
    *_alike(_UNUSED, "unused", _WATCH, _EITHER, _NOTHING),
    XidEntry(8, "GPU stopped processing", _RESTART, _EITHER, _PROCESS, NVIDIA),
    *_alike((11, 25, 32), "corrupted push buffer stream", _RESTART, _EITHER, _PROCESS),
    XidEntry(13, "graphics engine exception", _EVICT, _EITHER, _PROCESS, NVIDIA),
    XidEntry(31, "GPU memory page fault", _EVICT, _EITHER, _PROCESS, NVIDIA),
    *_alike((37, 38), "driver firmware error", _WATCH, _EITHER, _NOTHING),
    *_alike(_COPY_ENGINES, "copy engine exception", _RESTART, _EITHER, _PROCESS),
    XidEntry(43, "GPU stopped processing, reset of one channel", _RESTART, _SOFT, _PROCESS, GCM),
    XidEntry(44, "fault during a context switch", _WATCH, _EITHER, _NOTHING, NVIDIA),
    # Every worker that is killed may raise it, so that watching it would evict healthy nodes.
    XidEntry(PREEMPTIVE_CLEANUP, "preemptive cleanup after another error", _IGNORE, _SOFT, _NOTHING, DELTA),
    XidEntry(46, "GPU stopped processing, time-out", _EVICT, _HARD, _RESET, NVIDIA),
    XidEntry(48, "double-bit memory error", _EVICT, _HARD, _RESET, NVIDIA),
    XidEntry(54, "auxiliary power is not connected", _EVICT, _HARD, _REPLACE, NVIDIA),
    XidEntry(60, "video processor exception", _RESTART, _EITHER, _PROCESS, NVIDIA),
    XidEntry(61, "power management unit breakpoint", _EVICT, _HARD, _RESET, GPUD),
    XidEntry(62, "power management unit halted", _EVICT, _HARD, _RESET, NVIDIA),
    # The remap takes effect at the next reset; until then the GPU is sound.
    XidEntry(63, "memory row remap recorded", _IGNORE, _HARD, _NOTHING, NVIDIA),
    XidEntry(64, "memory row remap failed", _EVICT, _HARD, _REPLACE, NVIDIA),
    *_alike((66, 67), "illegal access by the driver", _WATCH, _EITHER, _NOTHING),
    *_alike(_VIDEO_DECODERS, "video decoder exception", _RESTART, _EITHER, _PROCESS),
    XidEntry(69, "graphics engine class error", _RESTART, _EITHER, _PROCESS, NVIDIA),
    XidEntry(74, "NVLink error", _EVICT, _HARD, _RESET, NVIDIA),
    XidEntry(78, "virtual GPU did not start", _WATCH, _SOFT, _NOTHING, NVIDIA),
    XidEntry(FELL_OFF_THE_BUS, "GPU has fallen off the bus", _EVICT, _HARD, _REBOOT, NVIDIA),
    XidEntry(80, "corrupted data sent to the GPU", _RESTART, _EITHER, _PROCESS, NVIDIA),
    *_alike(_JPEG_DECODERS, "JPEG decoder exception", _RESTART, _EITHER, _PROCESS),
    *_alike((86, 139), "optical flow engine exception", _RESTART, _EITHER, _PROCESS),
    XidEntry(92, "high single-bit error rate", _IGNORE, _HARD, _NOTHING, NVIDIA),
    XidEntry(93, "the board's configuration memory is worn", _IGNORE, _HARD, _NOTHING, NVIDIA),
    XidEntry(94, "contained memory error", _RESTART, _HARD, _PROCESS, NVIDIA),
    XidEntry(95, "uncontained memory error", _EVICT, _HARD, _RESET, NVIDIA),
    *_alike((106, 107), "test message of the management bus", _IGNORE, _SOFT, _NOTHING),
    XidEntry(109, "context switch time-out", _RESTART, _EITHER, _PROCESS, GCM),
    XidEntry(110, "security fault", _EVICT, _HARD, _RESET, NVIDIA),
    XidEntry(119, "GPU system processor does not answer", _EVICT, _EITHER, _RESET, NVIDIA),
    XidEntry(120, "GPU system processor error", _EVICT, _EITHER, _RESET, NVIDIA),
    XidEntry(121, "chip-to-chip link error", _WATCH, _HARD, _NOTHING, NVIDIA),
    XidEntry(136, "NVLink training failed", _EVICT, _HARD, _RESET, NVIDIA),
    # A peer refused an access that it did not allow: as a rule the program's own mistake.
    XidEntry(137, "NVLink access refused by the peer", _WATCH, _EITHER, _NOTHING, NVIDIA),
    XidEntry(140, "unrecovered memory error", _EVICT, _HARD, _RESET, NVIDIA),
    XidEntry(141, "fault on CUDA's fast path", _WATCH, _EITHER, _NOTHING, NVIDIA),
    XidEntry(142, "video encoder exception", _RESTART, _EITHER, _PROCESS, NVIDIA),
    XidEntry(143, "GPU initialisation error", _EVICT, _HARD, _RESET, NVIDIA),
    # What 144 to 150 ask for is decoded from their status words (`nvlink5`); these rows hold where none were read.
    XidEntry(144, "NVLink 5 SAW error", _WATCH, _HARD, _RESET, NVIDIA),
    XidEntry(145, "NVLink 5 RLW error", _WATCH, _HARD, _RESET, NVIDIA),
    XidEntry(146, "NVLink 5 TLW error", _WATCH, _HARD, _RESET, NVIDIA),
    XidEntry(147, "NVLink 5 TREX error", _WATCH, _HARD, _NOTHING, NVIDIA),
    XidEntry(148, "NVLink 5 NVLPW control error", _WATCH, _HARD, _NOTHING, NVIDIA),
    XidEntry(149, "NVLink 5 NETIR error", _WATCH, _HARD, _RESET, NVIDIA),
    XidEntry(150, "NVLink 5 MSE error", _WATCH, _HARD, _RESET, NVIDIA),
    XidEntry(151, "key rotation error", _EVICT, _EITHER, _REBOOT, NVIDIA),
    *_alike((152, 153), "deep learning accelerator error", _WATCH, _EITHER, _NOTHING),
    # Without an action, or with NONE, it says that the GPU needs nothing.
    XidEntry(RECOVERY_ACTION_CHANGED, "GPU recovery action changed", _IGNORE, _HARD, _NOTHING, NVIDIA),
    XidEntry(155, "NVLink software error", _EVICT, _EITHER, _RESET, NVIDIA),
    XidEntry(156, "resource retired", _IGNORE, _HARD, _NOTHING, NVIDIA),
    XidEntry(157, "resource retirement failed", _EVICT, _HARD, _REPLACE, NVIDIA),
    XidEntry(158, "fatal time-out", _EVICT, _HARD, _RESET, NVIDIA),
    XidEntry(159, "coherent interface error", _WATCH, _EITHER, _NOTHING, NVIDIA),
    XidEntry(160, "memory channel retired", _IGNORE, _HARD, _NOTHING, NVIDIA),
    XidEntry(161, "memory channel retirement failed", _WATCH, _HARD, _REPLACE, NVIDIA),
    # Of 162 to 172 NVIDIA lists no action.
    XidEntry(162, "power smoothing is engaged again", _IGNORE, _HARD, _NOTHING, NVIDIA),
    XidEntry(163, "power smoothing is disengaged", _WATCH, _HARD, _RESET, NVIDIA),
    XidEntry(164, "power smoothing is nearly worn out", _IGNORE, _HARD, _NOTHING, NVIDIA),
    XidEntry(165, "power smoothing is worn out", _WATCH, _HARD, _REPLACE, NVIDIA),
    *_alike((166, 170), "NVLink traffic that is not encrypted", _WATCH, _EITHER, _NOTHING),
    XidEntry(167, "fatal PCIe time-out", _EVICT, _HARD, _REBOOT, NVIDIA),
    XidEntry(168, "reduced GPU memory", _WATCH, _HARD, _REPLACE, NVIDIA),
    XidEntry(169, "security processor halted", _EVICT, _HARD, _RESET, NVIDIA),
    XidEntry(171, "detail of a memory error: DRAM", _IGNORE, _HARD, _NOTHING, NVIDIA),
    XidEntry(172, "detail of a memory error: SRAM", _IGNORE, _HARD, _NOTHING, NVIDIA),
)

CATALOGUE: Mapping[int, XidEntry] = MappingProxyType(
    {row.xid: row for row in sorted(_ROWS, key=lambda row: row.xid)}
)
