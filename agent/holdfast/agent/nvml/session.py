"""One session with the driver: from its initialisation until it is closed or the driver goes away."""

import contextlib
from dataclasses import dataclass, field

from holdfast.agent.nvml.driver import CallFailed, Driver, DriverAbsent, GpuLost, NvmlFailure, ResetRequired
from holdfast.agent.nvml.gpu import Gpu, identify
from holdfast.agent.reading import GpuDetail


@dataclass(frozen=True, slots=True)
class Sweep:
    """One poll of every GPU. Those without details are `lost`, `reset_required` or `unknown`: reasons by UUID."""

    details: tuple[GpuDetail, ...]
    lost: dict[str, str] = field(default_factory=dict)
    reset_required: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)


class Session:
    """GPUs that do not answer at the start give no UUID: they are `unidentified`, why by their number."""

    def __init__(self, driver: Driver) -> None:
        """Begin. Raises DriverAbsent."""
        self._driver = driver
        self.gpus: list[Gpu] = []
        self.unidentified: dict[int, NvmlFailure] = {}
        self._lost: dict[str, str] = {}
        try:
            driver.call("nvmlInit")
            try:
                for index in range(int(driver.call("nvmlDeviceGetCount"))):
                    try:
                        self.gpus.append(identify(driver, index))
                    except DriverAbsent:
                        raise
                    except NvmlFailure as failure:
                        self.unidentified[index] = failure
            except BaseException:
                self.close()
                raise
        except DriverAbsent:
            raise
        except NvmlFailure as failure:
            raise DriverAbsent(str(failure)) from failure

    def close(self) -> None:
        """End it. A driver that is gone has ended it already."""
        with contextlib.suppress(NvmlFailure):
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
