"""One session with the driver: from its initialisation until it is closed or the driver goes away."""

import contextlib
from dataclasses import dataclass, field

from holdfast.agent.nvml.driver import CallFailed, Driver, DriverAbsent, GpuLost, NvmlFailure, ResetRequired
from holdfast.agent.nvml.look import GpuLook, identify
from holdfast.agent.sensors.gpu_detail import GpuDetail


@dataclass(frozen=True, slots=True)
class Round:
    """One look at every GPU. Those without details are `lost`, `reset_required` or `unknown`: reasons by UUID."""

    details: tuple[GpuDetail, ...]
    lost: dict[str, str] = field(default_factory=dict)
    reset_required: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)


class Session:
    """GPUs that do not answer at the start give no name: they are `nameless`, why by their number."""

    def __init__(self, driver: Driver) -> None:
        """Begin. Raises DriverAbsent."""
        self._driver = driver
        self.gpus: list[GpuLook] = []
        self.nameless: dict[int, NvmlFailure] = {}
        self._lost: dict[str, str] = {}
        try:
            driver.call("nvmlInit")
        except DriverAbsent:
            raise
        except NvmlFailure as failure:
            raise DriverAbsent(str(failure)) from failure
        try:
            self._enumerate()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End it. A driver that is gone has ended it already."""
        with contextlib.suppress(NvmlFailure):
            self._driver.call("nvmlShutdown")

    def look(self, now: float) -> Round:
        """Ask every GPU that is not lost. Raises DriverAbsent."""
        reset: dict[str, str] = {}
        unknown: dict[str, str] = {}
        details = []
        for gpu in self.gpus:
            if gpu.uuid in self._lost:
                continue
            try:
                details.append(gpu.look(now))
            except GpuLost as failure:
                self._lost[gpu.uuid] = str(failure)
            except ResetRequired as failure:
                reset[gpu.uuid] = str(failure)
            except CallFailed as failure:
                unknown[gpu.uuid] = str(failure)
        return Round(tuple(details), dict(self._lost), reset, unknown)

    def _enumerate(self) -> None:
        try:
            count = int(self._driver.call("nvmlDeviceGetCount"))
        except DriverAbsent:
            raise
        except NvmlFailure as failure:
            raise DriverAbsent(str(failure)) from failure
        for index in range(count):
            try:
                self.gpus.append(identify(self._driver, index))
            except DriverAbsent:
                raise
            except NvmlFailure as failure:
                self.nameless[index] = failure
