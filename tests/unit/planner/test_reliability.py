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
from holdfast.planner.replicagroups import in_groups

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


def test_replica_groups_leave_what_ft_hsdp_tells_of_them() -> None:
    # Source: https://arxiv.org/abs/2602.00277: 18 minutes apart, 10 to restart, 3 of which all wait: 80%.
    given = Reliability(rate=6.4, restart_s=10 * MIN_S, regroup_s=3 * MIN_S, save_s=0.0, everybody=0.0)
    found = in_groups(12_500, 100_000, given)
    assert found is not None
    assert found.trains.value == pytest.approx(1 - 3 / 18)
    assert found.goodput.value == pytest.approx(0.80, abs=0.005)


@pytest.mark.parametrize(
    ("nodes", "rate", "groups", "whole", "trains", "goodput"),
    [
        pytest.param(2048, LLAMA3_RATE, 16, 0.993, 0.996, 0.996, id="16,384 GPUs"),
        pytest.param(4096, LLAMA3_RATE, 16, 0.987, 0.993, 0.992, id="32,768 GPUs"),
        pytest.param(12_500, LLAMA3_RATE, 20, 0.943, 0.956, 0.955, id="100,000 GPUs"),
        pytest.param(12_500, 6.4, 20, 0.897, 0.924, 0.922, id="100,000 GPUs, a fault every 16 minutes"),
    ],
)
def test_groups_are_worth_what_the_simulator_makes_of_them_within_two_points(
    nodes: int, rate: float, groups: int, whole: float, trains: float, goodput: float
) -> None:
    """Simulated: the table of replica groups in docs/simulator.md."""
    given = Reliability(rate=rate, groups=groups)
    found = in_groups(nodes, 8 * nodes, given)
    assert found is not None
    alone = effective_share(nodes, given, save_every_s(nodes, given).value).value
    assert alone == pytest.approx(whole, abs=0.02)
    assert found.trains.value == pytest.approx(trains, abs=0.02)
    assert found.goodput.value == pytest.approx(goodput, abs=0.02)
    assert found.trains.value > found.goodput.value > alone


def test_a_group_that_is_away_costs_less_where_there_are_more() -> None:
    few, many = (in_groups(4096, 32_768, Reliability(groups=groups)) for groups in (4, 64))
    assert few is not None
    assert many is not None
    assert few.trains == many.trains
    assert few.trains.value - few.goodput.value == pytest.approx(16 * (many.trains.value - many.goodput.value))
    # The others stop for two meetings and a copy.
    stop_s, back_s = 2 * (0.2 + 3.2768) + 10, 2400
    given = Reliability(save_s=0.0)
    bare = in_groups(4096, 32_768, given)
    assert bare is not None
    lost = (1 - given.everybody) * stop_s + given.everybody * back_s
    assert bare.trains.value == pytest.approx(1 - lost / between_failures_s(4096, given))


def test_there_are_no_groups_of_less_than_a_node_or_where_nothing_fails() -> None:
    assert in_groups(15, 120, Reliability()) is None
    assert in_groups(4096, 32_768, Reliability(groups=0)) is None
    assert in_groups(4096, 32_768, Reliability(rate=0.0)) is None


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


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate": -1.0},
        {"waiting": 0.0},
        {"waiting": 1.0},
        {"save_s": -1.0},
        {"everybody": 2.0},
        {"regroup_s": -1.0},
    ],
)
def test_what_no_fleet_can_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match="reliability"):
        Reliability(**wrong)
