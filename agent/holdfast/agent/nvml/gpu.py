"""One session with the driver, and its GPUs, each asked everything that the driver may tell of it.

What changes by the second is asked at every poll, what costs more or changes seldom now and then. What the driver
does not have is asked once a session.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import pynvml  # type: ignore[import-untyped] # NVIDIA publishes no types

from holdfast.agent.gpufailure import CallFailed, GpuFailure, GpuLost, NotTold, ResetRequired
from holdfast.agent.gpusession import begin_session
from holdfast.agent.gpusnapshot import Sweep
from holdfast.agent.nvml.driver import Driver, Field
from holdfast.agent.reading import GpuDetail, NvlinkDetail

# Counters of errors are judged by minutes and hours; the driver's events say sooner what cannot wait.
SELDOM_S: Final = 10.0
_QUICK_FIELDS: Final[tuple[Field, ...]] = (
    pynvml.NVML_FI_DEV_MEMORY_TEMP,
    pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION,
    pynvml.NVML_FI_DEV_PERF_POLICY_POWER,
    pynvml.NVML_FI_DEV_PERF_POLICY_THERMAL,
    pynvml.NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT,
    pynvml.NVML_FI_DEV_PERF_POLICY_RELIABILITY,
    pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN,
    pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN,
    pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER,
    pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,
    pynvml.NVML_FI_DEV_RETIRED_SBE,
    pynvml.NVML_FI_DEV_RETIRED_DBE,
    pynvml.NVML_FI_DEV_RETIRED_PENDING,
)
_LINKS_MAX: Final[int] = pynvml.NVML_NVLINK_MAX_LINKS
_LINK_COUNT: Final[int] = pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT
# Of one link, which is the field's scope, on NVLink 5 and newer.
_LINK_RECOVERIES: Final[int] = pynvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS
_LINK_RECEIVE_ERRORS: Final[int] = pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS


class _Links:
    """The NVLinks of one GPU. NVLink 5 counts by fields of a link, older ones by counters of their own."""

    def __init__(self, driver: Driver, handle: Any) -> None:
        self._driver = driver
        self._handle = handle
        self._count: int | None = None
        self._uncounted: set[int] = set()
        self._fields: list[Field] = []

    def poll(self) -> tuple[NvlinkDetail, ...]:
        """Every link, also one that is down; none where the GPU has no NVLink. Raises GpuLost, DriverAbsent."""
        if self._count is None:
            try:
                count = self._driver.field_values(self._handle, (_LINK_COUNT,)).get(_LINK_COUNT)
            except (NotTold, CallFailed):
                count = None
            if count is None:
                count = next((link for link in range(_LINKS_MAX) if self._active(link) is None), _LINKS_MAX)
            self._count = min(count, _LINKS_MAX)
            both = (_LINK_RECOVERIES, _LINK_RECEIVE_ERRORS)
            self._fields = [(field, link) for field in both for link in range(self._count)]
        told: Mapping[Field, int | None] = {}
        with contextlib.suppress(NotTold, CallFailed):
            told = self._driver.field_values(self._handle, self._fields)
            self._fields = [field for field in self._fields if field in told]
        links = []
        for link in range(self._count):
            recoveries = self._counter(link, pynvml.NVML_NVLINK_ERROR_DL_RECOVERY)
            crc_errors = self._counter(link, pynvml.NVML_NVLINK_ERROR_DL_CRC_FLIT)
            links.append(
                NvlinkDetail(
                    link=link,
                    active=self._active(link),
                    replays=self._counter(link, pynvml.NVML_NVLINK_ERROR_DL_REPLAY),
                    recoveries=_first(told.get((_LINK_RECOVERIES, link)), recoveries),
                    crc_errors=_first(told.get((_LINK_RECEIVE_ERRORS, link)), crc_errors),
                )
            )
        return tuple(links)

    def _active(self, link: int) -> bool | None:
        try:
            return bool(self._driver.call("nvmlDeviceGetNvLinkState", self._handle, link))
        except (NotTold, CallFailed):
            return None

    def _counter(self, link: int, counter: int) -> int | None:
        if counter in self._uncounted:
            return None
        try:
            return int(self._driver.call("nvmlDeviceGetNvLinkErrorCounter", self._handle, link, counter))
        except NotTold:
            if link == 0:  # of a single link it may be its state that forbids it
                self._uncounted.add(counter)
            return None
        except CallFailed:
            return None


class Gpu:
    """One GPU of a session with the driver. Polling costs calls into the driver: for a thread of its own."""

    def __init__(self, driver: Driver, handle: Any, *, uuid: str, index: int) -> None:
        self.uuid = uuid
        self.index = index
        self.handle = handle
        self._driver = driver
        self._untold: set[tuple[object, ...]] = set()
        self._fields = list(_QUICK_FIELDS)
        self._links = _Links(driver, handle)
        self._base: GpuDetail | None = None
        self._seldom_due_at = float("-inf")

    def ask_all_next(self) -> None:
        """Let the next poll ask everything."""
        self._seldom_due_at = float("-inf")

    def poll(self, now: float) -> GpuDetail:
        """The GPU now. Raises GpuLost, ResetRequired, DriverAbsent; CallFailed when it makes no sense."""
        # A GPU that cannot tell how warm it is answers nothing else in earnest.
        try:
            told = self._driver.call("nvmlDeviceGetTemperature", self.handle, pynvml.NVML_TEMPERATURE_GPU)
            temperature_c: float | None = told
        except NotTold:
            temperature_c = None
        if self._base is None:
            pci, threshold = self._ask("nvmlDeviceGetPciInfo"), "nvmlDeviceGetTemperatureThreshold"
            self._base = GpuDetail(
                uuid=self.uuid,
                index=self.index,
                model=self._ask("nvmlDeviceGetName"),
                pci_bus_id=None if pci is None else str(pci.busId).lower(),
                slowdown_c=self._ask(threshold, pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
                shutdown_c=self._ask(threshold, pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN),
                pcie_generation_max=self._ask("nvmlDeviceGetMaxPcieLinkGeneration"),
                pcie_width_max=self._ask("nvmlDeviceGetMaxPcieLinkWidth"),
            )
        if now >= self._seldom_due_at:
            self._base = self._seldom(self._base)
            self._seldom_due_at = now + SELDOM_S
        return self._quick(self._base, temperature_c)

    def recovery_action(self) -> int | None:
        """What the driver says this GPU needs. Raises GpuFailure."""
        action = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
        return self._driver.field_values(self.handle, (action,)).get(action)

    def _quick(self, base: GpuDetail, temperature_c: float | None) -> GpuDetail:
        told: Mapping[Field, int | None] = {}
        try:
            told = self._driver.field_values(self.handle, self._fields)
            self._fields = [field for field in self._fields if field in told]
        except NotTold:
            self._fields = []
        except CallFailed:
            pass
        use = self._ask("nvmlDeviceGetUtilizationRates")
        throttle: int | None = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        if throttle is None:  # the name it had before driver 535
            throttle = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        margin_c: float | None = self._ask("nvmlDeviceGetMarginTemperature")
        if margin_c is None and base.slowdown_c is not None and temperature_c is not None:
            margin_c = base.slowdown_c - temperature_c
        replays = told.get(pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER)
        thermal = (
            pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN,
            pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN,
        )
        thermal_ns = [part for field in thermal if (part := told.get(field)) is not None]
        pending = told.get(pynvml.NVML_FI_DEV_RETIRED_PENDING)
        return replace(
            base,
            temperature_c=temperature_c,
            memory_temperature_c=told.get(pynvml.NVML_FI_DEV_MEMORY_TEMP),
            margin_c=margin_c,
            power_w=_scaled(self._ask("nvmlDeviceGetPowerUsage"), 1e-3),
            energy_j=_scaled(told.get(pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION), 1e-3),
            sm_clock_mhz=self._ask("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM),
            memory_clock_mhz=self._ask("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM),
            utilization_ratio=None if use is None else use.gpu / 100.0,
            throttle=throttle,
            thermal_throttled_s=_scaled(
                sum(thermal_ns) if thermal_ns else told.get(pynvml.NVML_FI_DEV_PERF_POLICY_THERMAL), 1e-9
            ),
            power_throttled_s=_scaled(told.get(pynvml.NVML_FI_DEV_PERF_POLICY_POWER), 1e-9),
            board_limit_throttled_s=_scaled(told.get(pynvml.NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT), 1e-9),
            reliability_throttled_s=_scaled(told.get(pynvml.NVML_FI_DEV_PERF_POLICY_RELIABILITY), 1e-9),
            pcie_generation=self._ask("nvmlDeviceGetCurrPcieLinkGeneration"),
            pcie_width=self._ask("nvmlDeviceGetCurrPcieLinkWidth"),
            pcie_replays=self._ask("nvmlDeviceGetPcieReplayCounter") if replays is None else replays,
            retired_pages_single_bit=told.get(pynvml.NVML_FI_DEV_RETIRED_SBE),
            retired_pages_double_bit=told.get(pynvml.NVML_FI_DEV_RETIRED_DBE),
            page_retirement_pending=None if pending is None else bool(pending),
            recovery_action=told.get(pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION),
        )

    def _seldom(self, base: GpuDetail) -> GpuDetail:
        memory = self._ask("nvmlDeviceGetMemoryInfo")
        rows = self._ask("nvmlDeviceGetRemappedRows")
        processes = self._ask("nvmlDeviceGetComputeRunningProcesses")
        corrected = pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED
        uncorrected = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
        volatile, aggregate = pynvml.NVML_VOLATILE_ECC, pynvml.NVML_AGGREGATE_ECC
        return replace(
            base,
            power_limit_w=_scaled(self._ask("nvmlDeviceGetEnforcedPowerLimit"), 1e-3),
            memory_used_bytes=None if memory is None else memory.used,
            memory_total_bytes=None if memory is None else memory.total,
            ecc_corrected=self._ask("nvmlDeviceGetTotalEccErrors", corrected, volatile),
            ecc_uncorrected=self._ask("nvmlDeviceGetTotalEccErrors", uncorrected, volatile),
            ecc_corrected_aggregate=self._ask("nvmlDeviceGetTotalEccErrors", corrected, aggregate),
            ecc_uncorrected_aggregate=self._ask("nvmlDeviceGetTotalEccErrors", uncorrected, aggregate),
            remapped_rows_correctable=None if rows is None else rows[0],
            remapped_rows_uncorrectable=None if rows is None else rows[1],
            row_remap_pending=None if rows is None else bool(rows[2]),
            row_remap_failed=None if rows is None else bool(rows[3]),
            nvlinks=self._links.poll(),
            processes=None if processes is None else len(processes),
        )

    def _ask(self, function: str, *arguments: Any) -> Any:
        """The answer about this GPU, or None: Unknown."""
        key = (function, *arguments)
        if key in self._untold:
            return None
        try:
            return self._driver.call(function, self.handle, *arguments)
        except NotTold:
            self._untold.add(key)
            return None
        except CallFailed:
            return None


def identify(driver: Driver, index: int) -> Gpu:
    """The GPU of that number. Raises GpuFailure."""
    handle = driver.call("nvmlDeviceGetHandleByIndex", index)
    return Gpu(driver, handle, uuid=str(driver.call("nvmlDeviceGetUUID", handle)), index=index)


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else value * unit


def _first(value: int | None, other: int | None) -> int | None:
    return other if value is None else value


@contextlib.contextmanager
def every_gpu(driver: Driver) -> Iterator[list[Gpu]]:
    """All GPUs, in a session of their own. Raises GpuFailure, also when one of them does not answer."""
    driver.call("nvmlInit")
    try:
        yield [identify(driver, index) for index in range(int(driver.call("nvmlDeviceGetCount")))]
    finally:
        with contextlib.suppress(GpuFailure):
            driver.call("nvmlShutdown")


class Session:
    """A session with the driver. `unidentified` are GPUs that did not answer at the start, why by their number."""

    def __init__(self, driver: Driver) -> None:
        """Begin. Raises DriverAbsent."""
        self._driver = driver
        self._lost: dict[str, str] = {}
        self.gpus, self.unidentified = begin_session(
            lambda: driver.call("nvmlInit"),
            lambda: range(int(driver.call("nvmlDeviceGetCount"))),
            lambda index, _: identify(driver, index),
            self.close,
        )

    def close(self) -> None:
        """End it. A driver that is gone has ended it already."""
        with contextlib.suppress(GpuFailure):
            self._driver.call("nvmlShutdown")

    def sweep(self, now: float) -> Sweep:
        """Poll every GPU that is not lost. Raises DriverAbsent."""
        reset: dict[str, str] = {}
        unknown: dict[str, str] = {}
        details = []
        for gpu in self.gpus:
            if gpu.uuid in self._lost:
                continue
            try:
                details.append(gpu.poll(now))
            except GpuLost as failure:
                self._lost[gpu.uuid] = str(failure)
            except ResetRequired as failure:
                reset[gpu.uuid] = str(failure)
            except CallFailed as failure:
                unknown[gpu.uuid] = str(failure)
        return Sweep(tuple(details), dict(self._lost), reset, unknown)
