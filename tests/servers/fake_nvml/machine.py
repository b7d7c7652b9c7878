"""The scripted machine: what it is made of, as the fake library reads it. The layout is that of libnvidia-ml.c."""

import ctypes
from enum import IntEnum, auto

GPUS_MAX = 16
FIELDS = 320
LINKS = 36
VALUES = 64
PIDS = 16
EVENTS = 256
NAMES = 16
ABSENT = -(2**63)  # this driver does not tell


class Value(IntEnum):
    """A GPU's values that have calls of their own, in NVML's units."""

    @staticmethod
    def _generate_next_value_(name: str, start: int, count: int, last_values: list[int]) -> int:
        return count

    TEMPERATURE = auto()
    SLOWDOWN = auto()
    SHUTDOWN = auto()
    MARGIN = auto()
    POWER_MW = auto()
    POWER_LIMIT_MW = auto()
    POWER_REQUESTED_MW = auto()
    SM_MHZ = auto()
    SM_MAX_MHZ = auto()
    MEMORY_MHZ = auto()
    UTILIZATION = auto()
    MEMORY_USED = auto()
    MEMORY_TOTAL = auto()
    THROTTLE = auto()
    ECC_CORRECTED = auto()
    ECC_UNCORRECTED = auto()
    ECC_CORRECTED_AGGREGATE = auto()
    ECC_UNCORRECTED_AGGREGATE = auto()
    REMAPPED_CORRECTABLE = auto()
    REMAPPED_UNCORRECTABLE = auto()
    REMAP_PENDING = auto()
    REMAP_FAILED = auto()
    PCIE_GENERATION = auto()
    PCIE_GENERATION_MAX = auto()
    PCIE_WIDTH = auto()
    PCIE_WIDTH_MAX = auto()
    PCIE_REPLAYS = auto()
    EVENT_TYPES = auto()
    APPLICATION_SM_MHZ = auto()
    APPLICATION_MEMORY_MHZ = auto()
    PERSISTENCE = auto()
    FABRIC_STATE = auto()
    FABRIC_CLIQUE = auto()


class GpuLayout(ctypes.Structure):
    _fields_ = (
        ("uuid", ctypes.c_char * 96),
        ("name", ctypes.c_char * 96),
        ("serial", ctypes.c_char * 32),
        ("bus", ctypes.c_char * 32),
        ("error", ctypes.c_int64),
        ("value", ctypes.c_int64 * VALUES),
        ("field", ctypes.c_int64 * FIELDS),
        ("link_active", ctypes.c_int64 * LINKS),
        ("link_type", ctypes.c_int64 * LINKS),
        ("link_peer", ctypes.c_int64 * LINKS),
        ("link_counter", (ctypes.c_int64 * 5) * LINKS),
        ("pids", ctypes.c_int64 * PIDS),
    )


class EventLayout(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_int64), ("type", ctypes.c_int64), ("data", ctypes.c_int64))


class MachineLayout(ctypes.Structure):
    _fields_ = (
        ("layout", ctypes.c_int64),
        ("error", ctypes.c_int64),
        ("count", ctypes.c_int64),
        ("driver", ctypes.c_char * 80),
        ("hangs", ctypes.c_char * 80),
        ("missing", (ctypes.c_char * 80) * NAMES),
        ("calls", ctypes.c_int64),
        ("events_written", ctypes.c_int64),
        ("events", EventLayout * EVENTS),
        ("gpu", GpuLayout * GPUS_MAX),
    )
