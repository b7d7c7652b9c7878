"""Power limit, clocks and persistence of the GPUs: recorded before a test and put back after it."""

from collections.abc import Sequence
from dataclasses import dataclass

import pynvml  # type: ignore[import-untyped] # NVIDIA publishes no types

from holdfast.agent.nvml.driver import CallFailed, Driver, NotTold, NvmlFailure
from holdfast.agent.nvml.gpu import identify
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
        driver.call("nvmlInit")
        try:
            count = int(driver.call("nvmlDeviceGetCount"))
            return tuple(_settings(driver, index) for index in range(count))
        finally:
            driver.call("nvmlShutdown")
    except NvmlFailure as failure:
        return Unreadable("nvml", str(failure))


def restore_settings(driver: Driver, recorded: Sequence[DeviceSettings]) -> tuple[Unreadable, ...]:
    """Put back what differs from `recorded`, and only that. Returns what could not be put back."""
    now = record_settings(driver)
    if isinstance(now, Unreadable):
        return (now,) if recorded else ()
    present = {settings.uuid: settings for settings in now}
    failed: list[Unreadable] = []
    for wanted in recorded:
        current = present.get(wanted.uuid)
        if current is None:
            failed.append(Unreadable(wanted.uuid, "it does not answer any more"))
        elif current != wanted:
            failed.extend(_put_back(driver, wanted, current))
    return tuple(failed)


def _settings(driver: Driver, index: int) -> DeviceSettings:
    gpu = identify(driver, index)

    def ask(function: str, *more: int) -> int | None:
        try:
            return int(driver.call(function, gpu.handle, *more))
        except (NotTold, CallFailed):
            return None

    return DeviceSettings(
        uuid=gpu.uuid,
        index=index,
        power_limit_mw=ask("nvmlDeviceGetPowerManagementLimit"),
        application_sm_mhz=ask("nvmlDeviceGetApplicationsClock", pynvml.NVML_CLOCK_SM),
        application_memory_mhz=ask("nvmlDeviceGetApplicationsClock", pynvml.NVML_CLOCK_MEM),
        persistence=ask("nvmlDeviceGetPersistenceMode"),
    )


def _put_back(driver: Driver, wanted: DeviceSettings, current: DeviceSettings) -> list[Unreadable]:
    failed: list[Unreadable] = []

    def put(function: str, *values: int | None) -> None:
        if None in values:
            return
        try:
            driver.call(function, handle, *values)
        except NvmlFailure as failure:
            failed.append(Unreadable(wanted.uuid, str(failure)))

    try:
        driver.call("nvmlInit")
        handle = driver.call("nvmlDeviceGetHandleByIndex", current.index)
        if wanted.power_limit_mw != current.power_limit_mw:
            put("nvmlDeviceSetPowerManagementLimit", wanted.power_limit_mw)
        clocks = (wanted.application_memory_mhz, wanted.application_sm_mhz)
        if clocks != (current.application_memory_mhz, current.application_sm_mhz):
            put("nvmlDeviceSetApplicationsClocks", *clocks)
        if wanted.persistence != current.persistence:
            put("nvmlDeviceSetPersistenceMode", wanted.persistence)
        driver.call("nvmlShutdown")
    except NvmlFailure as failure:
        failed.append(Unreadable(wanted.uuid, str(failure)))
    return failed
