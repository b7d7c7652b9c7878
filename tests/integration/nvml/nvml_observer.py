"""A reader of the NVML sensor, as the agent reads it."""

import time
from collections.abc import Callable

from patience import patient

from holdfast.agent.nvml.driver import Driver
from holdfast.agent.nvml.sensor import NvmlSensor
from holdfast.agent.reading import Reading
from holdfast.api.telemetry import NodeEvent

PATIENCE_S = patient(30.0)


def until_listening(driver: Driver) -> None:
    """Until some thread waits for events: what happens before is heard by nobody."""
    give_up_at = time.monotonic() + PATIENCE_S
    while (running := driver.longest_running()) is None or running.function != "nvmlEventSetWait_v2":
        assert time.monotonic() < give_up_at, f"nobody waits for events: {running}"
        time.sleep(0.001)


class Observer:
    """Reads a sensor as the agent does and keeps every event."""

    def __init__(self, sensor: NvmlSensor) -> None:
        self.sensor = sensor
        self.events: list[NodeEvent] = []

    def read(self) -> Reading:
        reading = self.sensor.read(time.monotonic())
        self.events.extend(reading.events)
        return reading

    def until_listening(self) -> None:
        """As above, of the sensor's own driver."""
        until_listening(self.sensor._driver)

    def until(self, wanted: Callable[[Reading], bool]) -> Reading:
        """The first reading like that. Fails when it does not come."""
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            reading = self.read()
            if wanted(reading):
                return reading
            assert time.monotonic() < give_up_at, f"it did not come; the last: {reading}"
            time.sleep(0.02)
