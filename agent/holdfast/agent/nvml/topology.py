"""Which of this node's GPUs reach each other over NVLink."""

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pynvml  # type: ignore[import-untyped] # NVIDIA publishes no types

from holdfast.agent.gpufailure import CallFailed, GpuFailure, NotTold
from holdfast.agent.nvml.driver import Driver
from holdfast.agent.nvml.gpu import Gpu, every_gpu
from holdfast.api.telemetry import Unreadable

_SWITCH: Final = "switch"  # what all GPUs with links to NVSwitches have in common
_FABRIC_READY: Final[int] = pynvml.NVML_GPU_FABRIC_STATE_COMPLETED


@dataclass(frozen=True, slots=True)
class Domains:
    """UUIDs of GPUs that reach each other over NVLink, the largest group first; one without links is alone."""

    groups: tuple[tuple[str, ...], ...]

    def largest(self, among: Iterable[str] | None = None) -> int:
        """How many GPUs share one domain at most, of those `among` (None: all)."""
        wanted = None if among is None else set(among)
        return max(
            (sum(1 for uuid in group if wanted is None or uuid in wanted) for group in self.groups), default=0
        )


def nvlink_domains(driver: Driver) -> Domains | Unreadable:
    """Ask the driver, which may take its time. Unreadable where there is none, or where a GPU does not answer."""
    try:
        with every_gpu(driver) as gpus:
            return Domains(grouped([(gpu.uuid, _ends(driver, gpu)) for gpu in gpus]))
    except GpuFailure as failure:
        return Unreadable("nvml", str(failure))


def grouped(ends: Sequence[tuple[str, frozenset[str]]]) -> tuple[tuple[str, ...], ...]:
    """Pure: GPUs that have an end of a link in common, directly or over others. `ends` in the driver's order."""
    groups: list[tuple[set[str], list[str]]] = []
    for uuid, own in ends:
        joined = (set(own), [uuid])
        for group in [group for group in groups if group[0] & joined[0]]:
            joined = (joined[0] | group[0], [*group[1], *joined[1]])
            groups.remove(group)
        groups.append(joined)
    return tuple(sorted((tuple(uuids) for _, uuids in groups), key=len, reverse=True))


def _ends(driver: Driver, gpu: Gpu) -> frozenset[str]:
    """Its own end and what its active links lead to. Raises GpuFailure."""
    ends = {_bus_id(driver.call("nvmlDeviceGetPciInfo", gpu.handle))}
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            if not driver.call("nvmlDeviceGetNvLinkState", gpu.handle, link):
                continue
            kind = driver.call("nvmlDeviceGetNvLinkRemoteDeviceType", gpu.handle, link)
            if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
                ends.add(_SWITCH)
            elif kind == pynvml.NVML_NVLINK_DEVICE_TYPE_GPU:
                ends.add(_bus_id(driver.call("nvmlDeviceGetNvLinkRemotePciInfo", gpu.handle, link)))
        except NotTold:
            continue
    if _SWITCH in ends:
        # Links to a switch carry nothing before the fabric manager has set it up. GPUs before Hopper do not tell.
        info = pynvml.c_nvmlGpuFabricInfo_v2_t()
        with contextlib.suppress(NotTold):
            driver.call("nvmlDeviceGetGpuFabricInfoV", gpu.handle, pynvml.byref(info))
            if info.state not in (_FABRIC_READY, pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED):
                raise CallFailed(f"the NVLink fabric of {gpu.uuid} is not set up (state {info.state})")
    return frozenset(ends)


def _bus_id(pci: Any) -> str:
    return str(pci.busId).lower()
