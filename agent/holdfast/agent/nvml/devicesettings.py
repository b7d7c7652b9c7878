"""Power limit, clocks and persistence of the GPUs: recorded before a test and put back after it."""

from collections.abc import Sequence
from dataclasses import dataclass

import pynvml  # type: ignore[import-untyped] # NVIDIA publishes no types

from holdfast.agent.gpufailure import CallFailed, GpuFailure, NotTold
from holdfast.agent.nvml.driver import Driver
from holdfast.agent.nvml.gpu import Gpu, every_gpu
from holdfast.api.telemetry import Unreadable


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSettings:
    """One GPU's settings. None: the driver does not tell, so it is not touched either."""

    uuid: str
    index: int
    power_limit_mw: int | None = None
    application_sm_mhz: int | None = None
    application_memory_mhz: int | None = None
    persistence: int | None = None


def record_settings(driver: Driver) -> tuple[DeviceSettings, ...] | Unreadable:
    """What is set now. Unreadable without a driver."""
    try:
        with every_gpu(driver) as gpus:
            return tuple(_settings(driver, gpu) for gpu in gpus)
    except GpuFailure as failure:
        return Unreadable("nvml", str(failure))


def restore_settings(driver: Driver, recorded: Sequence[DeviceSettings]) -> tuple[Unreadable, ...]:
    """Put back what differs from `recorded`, and only that. Returns what could not be put back."""
    failed: list[Unreadable] = []

    def put(gpu: Gpu, function: str, *values: int | None) -> None:
        if None in values:
            return
        try:
            driver.call(function, gpu.handle, *values)
        except GpuFailure as failure:
            failed.append(Unreadable(gpu.uuid, str(failure)))

    try:
        with every_gpu(driver) as gpus:
            present = {gpu.uuid: (gpu, _settings(driver, gpu)) for gpu in gpus}
            for wanted in recorded:
                if wanted.uuid not in present:
                    failed.append(Unreadable(wanted.uuid, "it does not answer any more"))
                    continue
                gpu, current = present[wanted.uuid]
                if wanted.power_limit_mw != current.power_limit_mw:
                    put(gpu, "nvmlDeviceSetPowerManagementLimit", wanted.power_limit_mw)
                clocks = (wanted.application_memory_mhz, wanted.application_sm_mhz)
                if clocks != (current.application_memory_mhz, current.application_sm_mhz):
                    put(gpu, "nvmlDeviceSetApplicationsClocks", *clocks)
                if wanted.persistence != current.persistence:
                    put(gpu, "nvmlDeviceSetPersistenceMode", wanted.persistence)
    except GpuFailure as failure:
        return (Unreadable("nvml", str(failure)),) if recorded else ()
    return tuple(failed)


def _settings(driver: Driver, gpu: Gpu) -> DeviceSettings:
    def ask(function: str, *more: int) -> int | None:
        try:
            return int(driver.call(function, gpu.handle, *more))
        except (NotTold, CallFailed):
            return None

    return DeviceSettings(
        uuid=gpu.uuid,
        index=gpu.index,
        power_limit_mw=ask("nvmlDeviceGetPowerManagementLimit"),
        application_sm_mhz=ask("nvmlDeviceGetApplicationsClock", pynvml.NVML_CLOCK_SM),
        application_memory_mhz=ask("nvmlDeviceGetApplicationsClock", pynvml.NVML_CLOCK_MEM),
        persistence=ask("nvmlDeviceGetPersistenceMode"),
    )
