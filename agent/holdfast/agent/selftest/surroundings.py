"""What a test must leave as it found it: power limits, clocks and persistence of the GPUs.

A keeper process records them before and puts them back after, also when the test is killed: it hears of that by
the end of a pipe, and is in no process group that is killed with the test. It asks the driver on its own, so
that a driver that hangs holds up nobody.
"""

import logging
import os
import select
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NoReturn

from holdfast.agent.selftest.device import Device, DeviceKind
from holdfast.agent.selftest.supervision import reap

log = logging.getLogger(__name__)

_RECORD_S: Final = 5.0  # asking eight GPUs takes milliseconds

Restore = Callable[[], None]


@contextmanager
def kept_as_found(devices: Sequence[Device], record: Callable[[], Restore] | None = None) -> Iterator[None]:
    """Keep what `record` records (None: the settings of the GPUs) over the block. Does nothing on a CPU."""
    if all(device.kind is not DeviceKind.CUDA for device in devices):
        yield
        return
    recorded_read, recorded_write = os.pipe2(os.O_CLOEXEC)
    over_read, over_write = os.pipe2(os.O_CLOEXEC)
    keeper = os.fork()
    if keeper == 0:
        os.close(over_write)
        _keep(record or _record_settings, recorded_write, over_read)
    os.close(recorded_write)
    os.close(over_read)
    try:
        if not select.select([recorded_read], [], [], _RECORD_S)[0]:
            log.warning("the settings of the GPUs are not known, and will not be put back")
        yield
    finally:
        os.close(recorded_read)
        os.close(over_write)
        reap(keeper)


def _keep(record: Callable[[], Restore], recorded: int, over: int) -> NoReturn:
    try:
        os.setsid()
        restore = record()
        os.close(recorded)
        os.read(over, 1)
        restore()
    except Exception as error:
        log.warning("the settings of the GPUs are not kept: %s", error)
    finally:
        os._exit(0)


def _record_settings() -> Restore:
    # Only here: a test on the CPU needs no driver and no binding to it.
    import time

    from holdfast.agent.nvml.devicesettings import record_settings, restore_settings
    from holdfast.agent.nvml.driver import Driver
    from holdfast.api.errors import Unavailable
    from holdfast.api.telemetry import Unreadable

    driver = Driver(time.monotonic)
    recorded = record_settings(driver)
    if isinstance(recorded, Unreadable):
        raise Unavailable(recorded.reason)

    def restore() -> None:
        for failed in restore_settings(driver, recorded):
            log.warning("a setting was not put back gpu=%s reason=%s", failed.source, failed.reason)

    return restore
