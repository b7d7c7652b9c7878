"""The agent's look at its node."""

import logging

import pytest

from holdfast.agent.outbox import Outbox
from holdfast.agent.picture import Picture
from holdfast.agent.sensing import Sensing
from holdfast.agent.sensors.sensor import Reading
from holdfast.api.telemetry import GpuHealth, GpuSample, Unreadable

GPU = GpuSample("GPU-a", 0, GpuHealth.HEALTHY)


class Sound:
    name = "sound"

    def read(self, now: float) -> Reading:
        return Reading(gpus=(GPU,))


class Broken:
    name = "broken"

    def read(self, now: float) -> Reading:
        raise ZeroDivisionError("a bug")


def test_a_sensor_that_raises_is_unknown_and_does_not_blind_the_others(caplog: pytest.LogCaptureFixture) -> None:
    picture = Picture()
    outbox = Outbox(node="node-1", boot="b", interval_s=1.0)
    sensing = Sensing((Broken(), Sound()), picture=picture, outbox=outbox)
    with caplog.at_level(logging.ERROR):
        sensing.look(100.0)
        sensing.look(100.1)
    expected = (Unreadable("broken", "sensor failed: ZeroDivisionError('a bug')"),)
    assert picture.reading.gpus == (GPU,)
    assert picture.reading.unreadable == expected
    report = outbox.take(100.1)
    assert report is not None
    assert report.unreadable == expected
    assert len(caplog.records) == 1
