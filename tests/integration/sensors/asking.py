"""Reads a sensor again and again, as the agent does."""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from patience import patient

from holdfast.agent.reading import Reading
from holdfast.api.telemetry import NodeEvent


class Readable(Protocol):
    def read(self, now: float) -> Reading: ...


class Asking:
    """Keeps every event that was read."""

    def __init__(self, sensor: Readable) -> None:
        self._sensor = sensor
        self.events: list[NodeEvent] = []

    def once(self) -> Reading:
        reading = self._sensor.read(time.monotonic())
        self.events.extend(reading.events)
        return reading

    async def until(self, enough: Callable[[Reading], object]) -> Reading:
        """The first reading that is enough, within 25 s."""
        async with asyncio.timeout(patient(25)):
            while not enough(reading := self.once()):  # noqa: ASYNC110 - read as often as the agent does
                await asyncio.sleep(0.01)
            return reading
