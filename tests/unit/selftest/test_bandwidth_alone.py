"""Who is measured beside whom."""

from collections.abc import Sequence

import pytest

from holdfast.agent.selftest import selftest
from holdfast.agent.selftest.device import Device, DeviceKind
from holdfast.agent.selftest.selftest import Order, run
from holdfast.agent.selftest.station import START, Station
from holdfast.agent.selftest.supervision import Limits
from holdfast.api.selftest import CheckResult, Tested, TestLevel, Verdict

DEVICES = tuple(Device(f"GPU-{index}", DeviceKind.CPU, index) for index in range(3))


class Floor:
    """Where stations would run: every check passes, and who was there at the same time is remembered.

    `out_of_time`: for bandwidths there is no time left.
    """

    def __init__(self, *, out_of_time: bool = False) -> None:
        self.out_of_time = out_of_time
        self.measured: list[tuple[str, ...]] = []

    def supervise(self, stations: Sequence[Station], limits: Limits) -> list[tuple[CheckResult, ...]]:
        if any(check.name.startswith("bandwidth-") for station in stations for check in station.checks):
            self.measured.append(tuple(station.device.name for station in stations))
            if self.out_of_time:
                return [results_of(station, Verdict.UNKNOWN, START) for station in stations]
        return [results_of(station, Verdict.PASSED) for station in stations]


def results_of(station: Station, verdict: Verdict, *before: str) -> tuple[CheckResult, ...]:
    names = [*before, *(check.name for check in station.checks)]
    return tuple(CheckResult(name, station.device.name, verdict, "", 0.0) for name in names)


def outcome_on(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> Tested:
    monkeypatch.setattr(selftest, "supervise", floor.supervise)
    return run(Order(level=TestLevel.LIGHT, devices=DEVICES))


def test_every_device_has_its_links_for_itself_while_they_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    floor = Floor()
    tested = outcome_on(floor, monkeypatch)
    assert floor.measured == [("GPU-0",), ("GPU-1",), ("GPU-2",)]
    assert [each.device for each in tested.checks if each.check == "bandwidth-device"] == [
        device.name for device in DEVICES
    ]


def test_bandwidths_for_which_no_time_is_left_spoil_nothing_that_is_exact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tested = outcome_on(Floor(out_of_time=True), monkeypatch)
    assert tested.verdict is Verdict.PASSED
    assert {each.check for each in tested.checks if each.verdict is Verdict.UNKNOWN} == {"bandwidth-device"}
