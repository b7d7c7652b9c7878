"""One session with AMD's driver, and its GPUs, each asked what the sensors of every GPU tell.

AMD's words are mapped onto what Holdfast knows of a GPU: XGMI links are links between GPUs as NVLinks are, RAS
errors are memory errors, bad pages are pages to be retired, and violations are the reasons why clocks are held
down, by NVML's bits. What only AMD says goes with it in its own words, as `GpuDetail.words`.

Source: https://rocm.docs.amd.com/projects/amdsmi/en/latest/reference/amdsmi-py-api.html
"""

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from holdfast.agent.amd.driver import AmdDriver
from holdfast.agent.gpufailure import CallFailed, GpuFailure, GpuLost, NotTold
from holdfast.agent.gpusession import begin_session
from holdfast.agent.gpusnapshot import Sweep
from holdfast.agent.reading import GpuDetail, NvlinkDetail

SELDOM_S: Final = 10.0
# The kernel's driver resets a GPU by itself after some errors, which takes it away for some seconds.
LOST_AFTER_S: Final = 10.0
XGMI: Final = "xgmi"
# Transfers of one lane in a second, in GT/s, by PCIe generation. Source: https://pcisig.com/specifications
_GENERATIONS: Final[Mapping[float, int]] = MappingProxyType({2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6})
# What holds the clocks down, and the bit of NVML that means the same.
# Source: https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html
_VIOLATIONS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "active_ppt_pwr": 0x4,  # the power limit of the package
        "active_socket_thrm": 0x20,
        "active_hbm_thrm": 0x20,
        "active_vr_thrm": 0x20,
        "active_prochot_thrm": 0x40,  # the board says that something on it is too hot
    }
)
_RAS_BLOCKS: Final = ("UMC", "SDMA", "GFX", "MMHUB", "PCIE_BIF", "XGMI_WAFL", "MCA")


class AmdGpu:
    """One GPU of a session with the driver. Polling costs calls into the driver: for a thread of its own.

    `has_answered`: it did in an earlier session.
    """

    def __init__(
        self, driver: AmdDriver, handle: Any, *, uuid: str, index: int, has_answered: bool = False
    ) -> None:
        self.uuid = uuid
        self.index = index
        self._driver = driver
        self._handle = handle
        self._untold: set[tuple[object, ...]] = set()
        self._has_answered = has_answered
        self._base: GpuDetail | None = None
        self._seldom_due_at = float("-inf")

    def ask_all_next(self) -> None:
        """Let the next poll ask everything."""
        self._seldom_due_at = float("-inf")

    def recovery_action(self) -> int | None:
        """AMD's driver asks for none by name."""
        return None

    def poll(self, now: float) -> GpuDetail:
        """The GPU now. Raises GpuLost, DriverAbsent; CallFailed when it makes no sense."""
        amd = self._driver.bindings
        sort, metric = amd.AmdSmiTemperatureType, amd.AmdSmiTemperatureMetric
        temperature_c, use, power = self._vital(
            ("amdsmi_get_temp_metric", sort.HOTSPOT, metric.CURRENT),
            ("amdsmi_get_gpu_activity",),
            ("amdsmi_get_power_info",),
        )
        if self._base is None:
            asic, bus = self._ask("amdsmi_get_gpu_asic_info"), self._ask("amdsmi_get_gpu_device_bdf")
            self._base = GpuDetail(
                uuid=self.uuid,
                index=self.index,
                model=None if asic is None else _word(asic["market_name"]),
                pci_bus_id=None if bus is None else str(bus).lower(),
                slowdown_c=self._ask("amdsmi_get_temp_metric", sort.HOTSPOT, metric.CRITICAL) or None,
                shutdown_c=self._ask("amdsmi_get_temp_metric", sort.HOTSPOT, metric.EMERGENCY) or None,
            )
        if now >= self._seldom_due_at:
            self._base = self._seldom(self._base)
            self._seldom_due_at = now + SELDOM_S
        base, pcie = self._base, self._ask("amdsmi_get_pcie_info") or {}
        static, link = pcie.get("pcie_static", {}), pcie.get("pcie_metric", {})
        drawn = next((each for each in map(_number, _of(power, "socket_power", *_POWERS)) if each), None)
        busy = _number(*_of(use, "gfx_activity"))
        known = base.slowdown_c is not None and temperature_c is not None
        return replace(
            base,
            temperature_c=temperature_c,
            memory_temperature_c=self._ask("amdsmi_get_temp_metric", sort.VRAM, metric.CURRENT),
            margin_c=base.slowdown_c - temperature_c if known and base.slowdown_c is not None else None,
            power_w=drawn,
            utilization_ratio=None if busy is None else busy / 100.0,
            throttle=self._throttle(),
            sm_clock_mhz=self._clock(amd.AmdSmiClkType.GFX),
            memory_clock_mhz=self._clock(amd.AmdSmiClkType.MEM),
            pcie_generation=_generation(link.get("pcie_speed")),
            pcie_generation_max=_generation(static.get("max_pcie_speed")),
            pcie_width=_number(link.get("pcie_width")),
            pcie_width_max=_number(static.get("max_pcie_width")),
            pcie_replays=_number(link.get("pcie_replay_count")),
        )

    def _seldom(self, base: GpuDetail) -> GpuDetail:
        memory = self._ask("amdsmi_get_gpu_vram_usage")  # in MiB
        errors = self._ask("amdsmi_get_gpu_total_ecc_count") or {}
        pages = self._ask("amdsmi_get_gpu_bad_page_info")
        processes = self._ask("amdsmi_get_gpu_process_list")
        limit = self._ask("amdsmi_get_power_cap_info")
        status = self._driver.bindings.AmdSmiMemoryPageStatus
        states = None if pages is None else [each["status"] for each in pages]
        return replace(
            base,
            power_limit_w=None if limit is None else limit["power_cap"] * 1e-6,
            memory_used_bytes=None if memory is None else memory["vram_used"] << 20,
            memory_total_bytes=None if memory is None else memory["vram_total"] << 20,
            ecc_corrected=_number(errors.get("correctable_count")),
            ecc_uncorrected=_number(errors.get("uncorrectable_count")),
            page_retirement_pending=None if states is None else status.PENDING in states,
            row_remap_failed=None if states is None else status.UNRESERVABLE in states,
            nvlinks=self._links(),
            processes=None if processes is None else len(processes),
            words=self._words(errors, states),
        )

    def _words(self, errors: Mapping[str, Any], states: list[Any] | None) -> str:
        """What RAS says of memory errors and bad pages, empty while it says nothing."""
        counts = ("uncorrectable", "deferred", "correctable")
        parts = []
        if any(errors.get(f"{count}_count") for count in counts):
            for name in _RAS_BLOCKS:
                block = self._ask("amdsmi_get_gpu_ecc_count", self._driver.bindings.AmdSmiGpuBlock[name]) or {}
                said = [f"{block[f'{count}_count']} {count}" for count in counts if block.get(f"{count}_count")]
                parts += [f"{name} {', '.join(said)}"] if said else []
        status = self._driver.bindings.AmdSmiMemoryPageStatus
        for state in (status.PENDING, status.UNRESERVABLE) if states else ():
            if count := (states or []).count(state):
                parts.append(f"{count} bad pages {state.name}")
        return f"RAS: {'; '.join(parts)}" if parts else ""

    def _links(self) -> tuple[NvlinkDetail, ...]:
        """The XGMI links that are not disabled."""
        told = self._ask("amdsmi_get_gpu_xgmi_link_status")
        up: Mapping[str, bool] = {"U": True, "D": False}
        words = [] if told is None else told["status"]
        return tuple(
            NvlinkDetail(link=link, active=up[word], fabric=XGMI) for link, word in enumerate(words) if word in up
        )

    def _throttle(self) -> int | None:
        told = self._ask("amdsmi_get_violation_status")
        if told is None:
            return None
        known = {name: told.get(name) for name in _VIOLATIONS if isinstance(told.get(name), bool)}
        bits = 0
        for name, holds in known.items():
            bits |= _VIOLATIONS[name] if holds else 0
        return bits if known else None

    def _clock(self, sort: Any) -> int | None:
        told = self._ask("amdsmi_get_clock_info", sort)
        return None if told is None else _number(told.get("clk"))

    def _vital(self, *asked: tuple[Any, ...]) -> tuple[Any, ...]:
        """The answers to what every GPU tells that answers at all; None where it never does. Raises as `poll`.

        Of one that is gone from the machine the kernel's files are gone, and the library calls that not supported.
        One that has answered and tells nothing of all this any more is lost.
        Source: https://github.com/ROCm/amdsmi, rocm_smi/src/rocm_smi_utils.cc, ErrnoToRsmiStatus
        """
        answers: list[Any] = []
        untold: list[NotTold] = []
        for function, *arguments in asked:
            try:
                answers.append(self._driver.call(function, self._handle, *arguments))
            except NotTold as failure:
                answers.append(None)
                untold.append(failure)
        if len(untold) < len(asked):
            self._has_answered = True
        elif self._has_answered:
            raise GpuLost(f"{untold[0]}; it answered before")
        return tuple(answers)

    def _ask(self, function: str, *arguments: Any) -> Any:
        """The answer about this GPU, or None: Unknown. Raises DriverAbsent.

        One part of a GPU may not be there, or not answer: that is no loss of the GPU, which `_vital` sees.
        """
        key = (function, *arguments)
        if key in self._untold:
            return None
        try:
            return self._driver.call(function, self._handle, *arguments)
        except NotTold:
            self._untold.add(key)
        except (CallFailed, GpuLost):
            pass
        return None


_POWERS: Final = ("current_socket_power", "average_socket_power")


def _of(told: Mapping[str, Any] | None, *names: str) -> tuple[Any, ...]:
    return tuple(None if told is None else told.get(name) for name in names)


def _number(value: object) -> int | None:
    """None for the bindings' "N/A"."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _word(text: str) -> str | None:
    return None if text in ("", "N/A") else text


def _generation(speed: object) -> int | None:
    """The PCIe generation of a speed in GT/s, or in MT/s as newer versions of the library tell the current one."""
    number = _number(speed)
    if number is None:
        return None
    told = number / 1000.0 if number >= 1000 else float(number)
    return _GENERATIONS.get(2.5 if told == 2 else told)


class AmdSession:
    """A session with the driver. `unidentified` are GPUs that did not answer at the start, why by their number.

    `silent_since` is since when GPUs cannot be reached, by UUID: it outlives the session.
    """

    def __init__(self, driver: AmdDriver, silent_since: dict[str, float]) -> None:
        """Begin. Raises DriverAbsent."""
        self._driver = driver
        self._silent_since = silent_since
        self.gpus, self.unidentified = begin_session(
            lambda: driver.call("amdsmi_init", driver.bindings.AmdSmiInitFlags.INIT_AMD_GPUS),
            lambda: driver.call("amdsmi_get_processor_handles"),
            self._identified,
            self.close,
        )

    def _identified(self, index: int, handle: Any) -> AmdGpu:
        uuid = str(self._driver.call("amdsmi_get_gpu_device_uuid", handle))
        return AmdGpu(self._driver, handle, uuid=uuid, index=index, has_answered=uuid in self._silent_since)

    def close(self) -> None:
        """End it. A driver that is gone has ended it already."""
        with contextlib.suppress(GpuFailure):
            self._driver.call("amdsmi_shut_down")

    def sweep(self, now: float) -> Sweep:
        """Poll every GPU. One that cannot be reached is Unknown, and lost after a while. Raises DriverAbsent."""
        lost: dict[str, str] = {}
        unknown: dict[str, str] = {}
        details = []
        for gpu in self.gpus:
            try:
                details.append(gpu.poll(now))
                self._silent_since.pop(gpu.uuid, None)
            except GpuLost as failure:
                since = self._silent_since.setdefault(gpu.uuid, now)
                (lost if now - since >= LOST_AFTER_S else unknown)[gpu.uuid] = str(failure)
            except CallFailed as failure:
                unknown[gpu.uuid] = str(failure)
        return Sweep(tuple(details), lost=lost, unknown=unknown)
