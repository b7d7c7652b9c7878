"""A scripted machine, and a sensor on it through the real bindings."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_nvml import FakeNvml
from nvml_observer import Observer

from holdfast.agent.nvml.sensor import NvmlSensor


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[FakeNvml]:
    machine = FakeNvml(tmp_path)
    machine.load()
    yield machine
    machine.release()


@pytest.fixture
def observer(machine: FakeNvml) -> Iterator[Observer]:
    sensor = NvmlSensor()
    observer = Observer(sensor)
    observer.until_listening()
    yield observer
    machine.release()
    machine.unload_driver()  # a wait for events then ends at once
    sensor.close()
