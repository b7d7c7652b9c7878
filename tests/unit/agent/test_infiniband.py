"""The sensor over a fake tree: a thread looks, `read` answers."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ib_tree import IbTree

from holdfast.agent.conditions.book import Held
from holdfast.agent.conditions.memory import ConditionMemory
from holdfast.agent.reading import Reading
from holdfast.agent.sensors.background import Polled, Sight
from holdfast.agent.sensors.infiniband import Infiniband, ports_in
from holdfast.api.condition import AllClear, ConditionKind, ConditionState
from holdfast.api.telemetry import Unreadable


def until(read: Callable[[], Reading], enough: Callable[[Reading], bool]) -> Reading:
    """Ask again until it is enough, for 20 s at most."""
    for _ in range(2000):
        reading = read()
        if enough(reading):
            return reading
        time.sleep(0.01)
    raise AssertionError(f"not enough: {reading}")


def test_the_ports_are_read_on_a_thread(tmp_path: Path) -> None:
    tree = IbTree(tmp_path, adapters=8)
    sensor = Infiniband(str(tree.root), interval_s=0.01)
    reading = until(lambda: sensor.read(time.monotonic()), lambda reading: len(reading.ports) == 8)
    assert (reading.conditions, reading.unreadable) == ((), ())
    sensor.close()


def test_a_machine_without_adapters_reads_as_nothing(tmp_path: Path) -> None:
    assert ports_in(str(tmp_path / "absent")).ports == ()


def test_a_counter_at_its_limit_is_said_to_be_unreadable(tmp_path: Path) -> None:
    tree = IbTree(tmp_path, adapters=1)
    tree.port("mlx5_0", "counters/symbol_error", "65535")
    sensor = Infiniband(str(tree.root), interval_s=0.01)
    reading = until(lambda: sensor.read(time.monotonic()), lambda reading: bool(reading.unreadable))
    assert reading.unreadable[0].source == "infiniband mlx5_0/1 symbol_error"
    sensor.close()


def test_a_tree_that_cannot_be_listed_is_unreadable(tmp_path: Path) -> None:
    (tmp_path / "infiniband").write_text("not a folder")
    sensor = Infiniband(str(tmp_path / "infiniband"), interval_s=0.01)
    reading = until(lambda: sensor.read(time.monotonic()), lambda reading: bool(reading.unreadable))
    assert reading.unreadable == (Unreadable("infiniband", "Not a directory"),)
    sensor.close()


def test_a_look_that_hangs_makes_the_source_unreadable_until_it_returns() -> None:
    answers = iter([1, 2])
    polled = Polled(lambda: next(answers), name="slow", interval_s=3600.0, patience_s=10.0, clock=lambda: 100.0)
    assert polled.latest(100.0) is None or polled.latest(100.0) == Sight(1, 100.0)
    for _ in range(2000):
        if polled.latest(101.0) is not None:
            break
        time.sleep(0.01)
    assert polled.latest(101.0) == Sight(1, 100.0)
    assert polled.latest(112.0) == Unreadable("slow", "it has not answered for 12 s")
    polled.close()


def test_a_look_that_fails_does_not_end_the_looking() -> None:
    answers = iter(["not a number", "7"])
    polled = Polled(lambda: int(next(answers, "7")), name="odd", interval_s=0.01, patience_s=1e9)
    said: list[Sight[int] | Unreadable | None] = []
    for _ in range(2000):
        said.append(polled.latest(0.0))
        if isinstance(said[-1], Sight):
            break
        time.sleep(0.001)
    polled.close()
    assert isinstance(said[-1], Sight)
    assert said[-1].seen == 7


@pytest.mark.parametrize("text", ["", "4", "4: ACTIVE extra words", "\x00\xff", "-1: DOWN"])
def test_any_text_for_a_state_is_read_without_an_exception(tmp_path: Path, text: str) -> None:
    tree = IbTree(tmp_path, adapters=1)
    tree.port("mlx5_0", "state", text)
    assert len(ports_in(str(tree.root)).ports) == 1


def test_what_an_earlier_run_raised_holds_from_the_first_reading_on_until_its_rule_is_met(tmp_path: Path) -> None:
    path = str(tmp_path / "held.json")
    before = Held(ConditionKind.LINK_DOWN, "port mlx5_0/1: it was up and is down", 1.0, device="mlx5_0/1")
    ConditionMemory(path).keep((before,), 1.0)
    sensor = Infiniband(str(IbTree(tmp_path, adapters=1).root), interval_s=0.01, memory=ConditionMemory(path))
    assert [each.device for each in sensor.read(time.monotonic()).conditions] == ["mlx5_0/1"]
    reading = until(lambda: sensor.read(time.monotonic()), lambda reading: bool(reading.ports))
    sensor.close()
    assert [each.state for each in reading.conditions] == [ConditionState.RAISED]
    assert [each.device for each in ConditionMemory(path).recall(time.monotonic())] == ["mlx5_0/1"]


def test_a_port_that_cannot_be_read_keeps_all_from_being_clear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = IbTree(tmp_path, adapters=2)
    sensor = Infiniband(str(tree.root))
    monkeypatch.setattr(Polled, "latest", lambda polled, now: Sight(ports_in(str(tree.root)), now))
    for now in range(0, 120, 5):
        reading = sensor.read(float(now))
    assert AllClear(ConditionKind.LINK_DOWN) in reading.all_clear
    tree.port("mlx5_0", "state", "garbage")
    assert sensor.read(120.0).all_clear == ()
