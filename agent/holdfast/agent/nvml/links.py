"""The NVLinks of one GPU."""

from typing import Any, Final

import pynvml  # type: ignore[import-untyped] # NVIDIA publishes no types

from holdfast.agent.nvml import fields
from holdfast.agent.nvml.driver import CallFailed, Driver, NotTold
from holdfast.agent.nvml.fields import Field, field_values
from holdfast.agent.sensors.gpu_detail import NvlinkDetail

_LINKS_MAX: Final[int] = pynvml.NVML_NVLINK_MAX_LINKS
_REPLAYS: Final[int] = pynvml.NVML_NVLINK_ERROR_DL_REPLAY
_RECOVERIES: Final[int] = pynvml.NVML_NVLINK_ERROR_DL_RECOVERY
_CRC_FLITS: Final[int] = pynvml.NVML_NVLINK_ERROR_DL_CRC_FLIT


class Links:
    """Reads them. NVLink 5 counts by fields of a link, older ones by counters of their own."""

    def __init__(self, driver: Driver, handle: Any) -> None:
        self._driver = driver
        self._handle = handle
        self._count: int | None = None
        self._uncounted: set[int] = set()
        self._link_fields: list[Field] | None = None

    def look(self) -> tuple[NvlinkDetail, ...]:
        """Every link, also one that is down; none where the GPU has no NVLink. Raises GpuLost, DriverAbsent."""
        if self._count is None:
            self._count = self._count_links()
        told = self._counted_by_field()
        return tuple(self._link(link, told) for link in range(self._count))

    def _count_links(self) -> int:
        try:
            told = field_values(self._driver, self._handle, (fields.LINK_COUNT,)).get(fields.LINK_COUNT)
        except (NotTold, CallFailed):
            told = None
        if told is not None:
            return min(told, _LINKS_MAX)
        for link in range(_LINKS_MAX):
            try:
                self._driver.call("nvmlDeviceGetNvLinkState", self._handle, link)
            except (NotTold, CallFailed):
                return link
        return _LINKS_MAX

    def _link(self, link: int, told: dict[Field, int | None]) -> NvlinkDetail:
        return NvlinkDetail(
            link=link,
            active=self._active(link),
            replays=self._counter(link, _REPLAYS),
            recoveries=_known(told.get((fields.LINK_RECOVERIES, link)), self._counter(link, _RECOVERIES)),
            crc_errors=_known(told.get((fields.LINK_RECEIVE_ERRORS, link)), self._counter(link, _CRC_FLITS)),
        )

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

    def _counted_by_field(self) -> dict[Field, int | None]:
        if self._link_fields is None:
            links = range(self._count or 0)
            both = (fields.LINK_RECOVERIES, fields.LINK_RECEIVE_ERRORS)
            self._link_fields = [(field, link) for field in both for link in links]
        try:
            told = dict(field_values(self._driver, self._handle, self._link_fields))
        except (NotTold, CallFailed):
            return {}
        self._link_fields = [field for field in self._link_fields if field in told]
        return told


def _known(first: int | None, second: int | None) -> int | None:
    return second if first is None else first
