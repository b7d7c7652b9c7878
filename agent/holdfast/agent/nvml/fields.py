"""Many of a GPU's values in one call: NVML's field values."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pynvml  # type: ignore[import-untyped] # NVIDIA publishes no types

from holdfast.agent.nvml.driver import Driver, GpuLost, NotTold, ResetRequired, failure_of

MEMORY_TEMPERATURE_C: Final[int] = pynvml.NVML_FI_DEV_MEMORY_TEMP
ENERGY_MJ: Final[int] = pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION
POWER_THROTTLED_NS: Final[int] = pynvml.NVML_FI_DEV_PERF_POLICY_POWER
THERMAL_THROTTLED_NS: Final[int] = pynvml.NVML_FI_DEV_PERF_POLICY_THERMAL
BOARD_LIMIT_THROTTLED_NS: Final[int] = pynvml.NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT
RELIABILITY_THROTTLED_NS: Final[int] = pynvml.NVML_FI_DEV_PERF_POLICY_RELIABILITY
SOFTWARE_THERMAL_NS: Final[int] = pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN
HARDWARE_THERMAL_NS: Final[int] = pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN
PCIE_REPLAYS: Final[int] = pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER
RECOVERY_ACTION: Final[int] = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
RETIRED_SINGLE_BIT: Final[int] = pynvml.NVML_FI_DEV_RETIRED_SBE
RETIRED_DOUBLE_BIT: Final[int] = pynvml.NVML_FI_DEV_RETIRED_DBE
RETIREMENT_PENDING: Final[int] = pynvml.NVML_FI_DEV_RETIRED_PENDING
LINK_COUNT: Final[int] = pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT
# Of one link, which is the field's scope, on NVLink 5 and newer.
LINK_RECEIVE_ERRORS: Final[int] = pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS
LINK_RECOVERIES: Final[int] = pynvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS

Field = int | tuple[int, int]  # a field, or a field and its scope

# The member of the value's union by its type. Source: nvmlValueType_t,
# https://docs.nvidia.com/deploy/nvml-api/group__nvmlFieldValueEnums.html
_MEMBERS: Final[Sequence[str]] = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


def field_values(driver: Driver, handle: Any, fields: Sequence[Field]) -> Mapping[Field, int | None]:
    """What the driver says of each field; None: nothing now. One that it does not have is left out.

    Raises GpuLost and ResetRequired also when only a field's own answer says so, and what `Driver.call` raises.
    """
    if not fields:
        return {}
    values: dict[Field, int | None] = {}
    for field, answer in zip(fields, driver.call("nvmlDeviceGetFieldValues", handle, list(fields)), strict=True):
        if answer.nvmlReturn == pynvml.NVML_SUCCESS:
            values[field] = _value(answer)
            continue
        failure = failure_of("nvmlDeviceGetFieldValues", answer.nvmlReturn)
        if isinstance(failure, GpuLost | ResetRequired):
            raise failure
        if not isinstance(failure, NotTold):
            values[field] = None
    return values


def _value(answer: Any) -> int | None:
    if not 0 <= answer.valueType < len(_MEMBERS):
        return None
    value: float = getattr(answer.value, _MEMBERS[answer.valueType])
    return int(value) if math.isfinite(value) else None
