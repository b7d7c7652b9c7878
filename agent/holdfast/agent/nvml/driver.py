"""Calls into the NVIDIA driver's management library: what went wrong as one of five errors, and how long it takes.

Source: nvmlReturn_t, https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceEnumvs.html
"""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pynvml  # type: ignore[import-untyped] # NVIDIA publishes no types

from holdfast.agent.gpufailure import (
    CallFailed,
    DriverAbsent,
    GpuFailure,
    GpuLost,
    NothingYet,
    NotTold,
    ResetRequired,
)
from holdfast.agent.gpusensor import Running

_FAILURES: Final[dict[int, type[GpuFailure]]] = {
    pynvml.NVML_ERROR_NOT_SUPPORTED: NotTold,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: NotTold,
    pynvml.NVML_ERROR_NO_PERMISSION: NotTold,
    pynvml.NVML_ERROR_INVALID_ARGUMENT: NotTold,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: NotTold,
    pynvml.NVML_ERROR_NOT_FOUND: NotTold,
    pynvml.NVML_ERROR_TIMEOUT: NothingYet,
    pynvml.NVML_ERROR_GPU_IS_LOST: GpuLost,
    pynvml.NVML_ERROR_RESET_REQUIRED: ResetRequired,
    pynvml.NVML_ERROR_UNINITIALIZED: DriverAbsent,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: DriverAbsent,
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: DriverAbsent,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: DriverAbsent,
}

Field = int | tuple[int, int]  # a field, or a field and its scope
# The member of a field value's union by its type. Source: nvmlValueType_t,
# https://docs.nvidia.com/deploy/nvml-api/group__nvmlFieldValueEnums.html
_MEMBERS: Final[Sequence[str]] = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


def _failure_of(function: str, code: int) -> GpuFailure:
    absent = code == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
    words = "libnvidia-ml.so.1 is not found" if absent else pynvml.NVMLError(code)
    return _FAILURES.get(code, CallFailed)(f"{function}: {words}")


class Driver:
    """The library in this process. Any thread may call; a call is known to be running until it returns."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._running: dict[int, Running] = {}

    def call(self, function: str, *arguments: Any) -> Any:
        """Call the binding of that name. Raises GpuFailure."""
        thread = threading.get_ident()
        self._running[thread] = Running(function, self._clock())
        try:
            return getattr(pynvml, function)(*arguments)
        except pynvml.NVMLError as error:
            raise _failure_of(function, error.value) from error
        finally:
            del self._running[thread]

    def longest_running(self) -> Running | None:
        return min(tuple(self._running.values()), key=lambda running: running.since, default=None)

    def field_values(self, handle: Any, fields: Sequence[Field]) -> Mapping[Field, int | None]:
        """What is said of each field of a GPU; None: nothing now. One that it does not have is left out.

        Raises GpuLost and ResetRequired also when only a field's own answer says so, and what `call` raises.
        """
        if not fields:
            return {}
        values: dict[Field, int | None] = {}
        for field, answer in zip(fields, self.call("nvmlDeviceGetFieldValues", handle, list(fields)), strict=True):
            if answer.nvmlReturn == pynvml.NVML_SUCCESS:
                known = 0 <= answer.valueType < len(_MEMBERS)
                value: float = getattr(answer.value, _MEMBERS[answer.valueType]) if known else math.nan
                values[field] = int(value) if math.isfinite(value) else None
                continue
            failure = _failure_of("nvmlDeviceGetFieldValues", answer.nvmlReturn)
            if isinstance(failure, GpuLost | ResetRequired):
                raise failure
            if not isinstance(failure, NotTold):
                values[field] = None
        return values
