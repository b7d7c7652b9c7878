import math

import pytest

from holdfast.api.errors import InvalidInput
from holdfast.planner.reliability import (
    LLAMA3_RATE,
    Reliability,
    between_failures_s,
    effective_share,
    save_every_s,
    spares_for,
)

MIN_S = 60.0


@pytest.mark.parametrize(("hours", "minutes"), [(24.0, 117.0), (6.0, 57.0), (0.25, 9.1)])
def test_the_interval_is_what_daly_prints_for_a_save_of_five_minutes(hours: float, minutes: float) -> None:
    # Source: https://doi.org/10.1016/j.future.2004.11.016
    given = Reliability(rate=24.0 / hours * 1000.0, save_s=5 * MIN_S)
    assert save_every_s(1, given).value / MIN_S == pytest.approx(minutes, rel=0.006)


@pytest.mark.parametrize(
    ("rate", "save_s", "share"), [(6.5, 5 * MIN_S, 0.740), (1.0, 5 * MIN_S, 0.898), (6.5, 10.0, 0.921)]
)
def test_the_effective_share_is_that_of_meta_at_12000_gpus(rate: float, save_s: float, share: float) -> None:
    # Source: https://arxiv.org/abs/2410.21680: interval sqrt(2 w / (N r)), restart of five minutes.
    given = Reliability(rate=rate, restart_s=5 * MIN_S, save_s=save_s)
    interval = math.sqrt(2.0 * save_s * between_failures_s(1500, given))
    assert effective_share(1500, given, interval).value == pytest.approx(share, abs=0.002)


@pytest.mark.parametrize(("restart_s", "share"), [(10 * MIN_S, 0.43), (3 * MIN_S, 0.82)])
def test_a_hundred_thousand_gpus_reach_what_ft_hsdp_tells(restart_s: float, share: float) -> None:
    # Source: https://arxiv.org/abs/2602.00277: 44% and 80%
    given = Reliability(rate=6.5, restart_s=restart_s, save_s=0.0)
    assert effective_share(12_500, given, 0.0).value == pytest.approx(share, abs=0.02)


def test_llama_3_was_interrupted_every_three_hours() -> None:
    assert pytest.approx(3.79, abs=0.005) == LLAMA3_RATE
    assert between_failures_s(2048, Reliability()) / 3600 == pytest.approx(3.09, abs=0.01)


@pytest.mark.parametrize(
    ("nodes", "repair_days", "spares"),
    [(1, 0.0, 0), (128, 3.0, 5), (2048, 3.0, 35), (12_500, 3.0, 171)],
)
def test_spares_are_a_percentile_of_those_in_repair(nodes: int, repair_days: float, spares: int) -> None:
    given = Reliability(repair_days=repair_days)
    found = spares_for(nodes, given).value
    assert found == pytest.approx(spares, abs=2)
    away = LLAMA3_RATE / 1000 * repair_days
    assert found >= math.floor(nodes * away)


def test_spares_grow_with_the_nodes_also_where_the_chance_that_all_are_there_is_hardly_a_number() -> None:
    given = Reliability(rate=100.0)
    found = [spares_for(nodes, given).value for nodes in range(1600, 2200, 4)]
    assert found == sorted(found)
    # 30% of them are away: the mean, and 2.33 times sqrt(n x 0.3 x 0.7) above it.
    assert spares_for(2088, given).value == pytest.approx(626.4 + 2.33 * 20.94, abs=1.5)
    assert spares_for(1680, given).value == pytest.approx(504 + 2.33 * 18.78, abs=1.5)


def test_nothing_that_fails_never_saves_and_loses_nothing() -> None:
    given = Reliability(rate=0.0)
    assert math.isinf(save_every_s(8, given).value)
    assert effective_share(8, given, math.inf).value == 1.0


@pytest.mark.parametrize("wrong", [{"rate": -1.0}, {"waiting": 0.0}, {"waiting": 1.0}, {"save_s": -1.0}])
def test_what_no_fleet_can_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match="reliability"):
        Reliability(**wrong)
