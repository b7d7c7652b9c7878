"""How often the fleet fails, and what few failures can say of it."""

import pytest
from msgspec.structs import replace

from holdfast.api.finding import FindingKind
from holdfast.api.place import Place
from holdfast.watchdog.brain import rates
from holdfast.watchdog.brain.failures import WEEK_S, Failure, Failures, Nodes, trained
from holdfast.watchdog.brain.rates import (
    at_most,
    interval,
    node_failures_per_day,
    overall,
    rate,
    spares_for,
    tables,
)
from holdfast.watchdog.brain.saves import NODE_FAILURES_PER_DAY, between_failures_s

NOW = 100 * WEEK_S
DAY = 86400.0
RACKS = {name: (Place("driver", "550.54"), Place("rack", name)) for name in ("r1", "r2")}


def failure(kind: FindingKind, rack: str = "r1", *, at: float = NOW, celsius: float | None = None) -> Failure:
    where = {f"node-of-{rack}": RACKS[rack]}
    return Failure("team/a", f"inc-{at}", at, kind, "it", None, interrupts=True, celsius=celsius, where=where)


def watched(*failures: Failure, days: float = 1.0, nodes: int = 10) -> Failures:
    """Half of the nodes are in r1, all have eight GPUs, of 65 degrees."""
    places = tuple(RACKS["r1" if number % 2 else "r2"] for number in range(nodes))
    known = trained(Failures(), NOW, NOW + days * DAY, Nodes(8, places, (65.0,) * nodes))
    return Failures(failures, known.spent)


# Source: exact limits of a Poisson mean at 95 %, https://doi.org/10.1093/biomet/28.3-4.437 (table)
@pytest.mark.parametrize(
    ("count", "low", "high"),
    [(0, 0.0, 3.689), (1, 0.0253, 5.572), (2, 0.242, 7.225), (5, 1.623, 11.668), (10, 4.795, 18.390)],
)
def test_the_interval_of_few_failures_is_exact(count: int, low: float, high: float) -> None:
    assert interval(count) == pytest.approx((low, high), abs=1e-3)


def test_the_interval_of_many_goes_on_where_the_exact_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    approximate = interval(101)
    monkeypatch.setattr(rates, "EXACT_MAX", 200)
    assert approximate == pytest.approx(interval(101), rel=1e-4)


def test_a_rate_is_per_thousand_gpu_hours() -> None:
    told = rate("r1", 2, 4000.0 * 3600.0)
    assert (told.gpu_hours, told.per_1000_gpu_hours) == (4000.0, 0.5)
    assert (told.low, told.high) == pytest.approx((0.242 / 4, 7.225 / 4), abs=1e-3)
    nothing = rate("r1", 0, 0.0)
    assert (nothing.per_1000_gpu_hours, nothing.low, nothing.high) == (None, None, None)


def test_failures_are_told_apart_by_all_that_is_known() -> None:
    six = 6 * 3600.0
    known = watched(
        failure(FindingKind.XID, at=NOW + six, celsius=81.0),
        failure(FindingKind.XID, "r2", at=NOW + six, celsius=65.0),
        failure(FindingKind.HANG, at=NOW),
    )
    told = tables(known)
    assert list(told) == ["kind", "hour", "temperature", "driver", "rack"]
    assert [(each.group, each.failures, each.gpu_hours) for each in told["kind"]] == [
        ("Xid", 2, 1920.0),
        ("Hang", 1, 1920.0),
    ]
    assert [(each.group, each.failures, each.gpu_hours) for each in told["rack"]] == [
        ("r1", 2, 960.0),
        ("r2", 1, 960.0),
    ]
    assert [(each.group, each.failures) for each in told["driver"]] == [("550.54", 3)]
    by_hour = {each.group: each.failures for each in told["hour"]}
    assert len(by_hour) == 24
    assert sum(by_hour.values()) == 3
    assert [(each.group, each.failures) for each in told["temperature"]] == [("60-69", 1)]
    assert overall(known).failures == 3


def test_what_did_not_interrupt_training_is_no_failure_of_the_table() -> None:
    known = watched(replace(failure(FindingKind.HANG), interrupts=False))
    assert overall(known).failures == 0
    assert "kind" not in tables(known)


def test_little_watching_says_nothing_and_much_says_how_often_nodes_fail() -> None:
    assert node_failures_per_day(Failures()) is None
    lost = [failure(FindingKind.MEMBER_LOST, at=NOW + number) for number in range(4)]
    assert node_failures_per_day(watched(*lost)) is None
    assert node_failures_per_day(watched(*lost, failure(FindingKind.HANG))) is None  # no node failed by it
    five = node_failures_per_day(watched(*lost, failure(FindingKind.GPU_LOST)))
    assert five == pytest.approx(6 / (1 / NODE_FAILURES_PER_DAY + 10))
    quiet = node_failures_per_day(watched(days=30.0, nodes=100))
    assert quiet is not None
    assert quiet < NODE_FAILURES_PER_DAY / 10


def test_a_fleet_that_fails_more_often_saves_more_often() -> None:
    published = between_failures_s(64, 0, 0.0)
    assert between_failures_s(64, 0, 0.0, 4 * NODE_FAILURES_PER_DAY) == pytest.approx(published / 4)


def test_spares_are_advised_by_how_many_nodes_may_be_away_at_once() -> None:
    assert spares_for(1, 1e-6) == 0
    assert spares_for(64, None) == spares_for(64, NODE_FAILURES_PER_DAY)
    for nodes in (8, 64, 1000):
        spares, mean = spares_for(nodes, 0.02), nodes * 0.02
        assert at_most(spares, mean) >= 0.95
        assert spares == 0 or at_most(spares - 1, mean) < 0.95
