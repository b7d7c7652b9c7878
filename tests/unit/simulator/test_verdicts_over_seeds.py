from itertools import pairwise

import msgspec
import pytest
from smallfleet import LOST_S, small_live

from holdfast.api.errors import InvalidInput
from holdfast.api.policy import CheckpointInterval, GpuHour, Policy, RestartBudget
from holdfast.simulator.comparison import Side, compared
from holdfast.simulator.fault import FaultRate, Symptom
from holdfast.simulator.outcome import LostTo, Outcome
from holdfast.simulator.scenario import DAY_S, Fleet, Scenario
from holdfast.simulator.sweep import axes, points, ranked, says
from holdfast.simulator.verdict import quantile, verdict

NODES, DAYS, RATE = 100, 10.0, 10.0  # 10 faults a run


def a_scenario(*, interval_s: float | None = None, spares: int = 0, price: float | None = None) -> Scenario:
    policy = Policy(
        job="default/x",
        nodes_min=1,
        nodes_max=NODES,
        spares=spares,
        processes_per_node=8,
        interval=CheckpointInterval(seconds=interval_s),
        gpu_hour=GpuHour(price, "EUR") if price is not None else None,
    )
    fleet = Fleet(nodes=NODES, spares=spares, gpu_hour=price)
    return Scenario(policy, fleet, (FaultRate("broken", Symptom.NODE_LOST, rate=RATE),), DAYS)


def lived(scenario: Scenario, seeds: int = 20, first: int = 1) -> list[Outcome]:
    return [small_live(scenario, seed) for seed in range(first, first + seeds)]


def test_a_verdict_is_the_closed_form_within_its_interval() -> None:
    """Ten faults a run of five minutes each, of 14,400 minutes."""
    found = verdict("x", a_scenario(price=2.0), lived(a_scenario(price=2.0), 100))
    lost = found.figures["lost_minutes"]
    assert (lost.low or 0) <= 10 * LOST_S / 60 <= (lost.high or 0)
    assert found.figures["ettr"].mean == pytest.approx(1 - lost.mean / 14_400)
    assert found.figures["lost_gpu_hours"].mean == pytest.approx(lost.mean / 60 * NODES * 8)
    assert found.figures["lost_money"].mean == pytest.approx(lost.mean / 60 * NODES * 8 * 2.0)
    assert (found.by_phase["Restart"].mean, found.by_cause["broken"].mean) == (lost.mean, lost.mean)
    assert found.recovery is not None
    assert found.recovery.median_s == LOST_S
    assert found.currency == "EUR"


def test_spares_are_paid_for_while_they_wait() -> None:
    """A spare makes each recovery a minute shorter, and costs 8 GPUs for ten days."""
    without, with_one = (verdict("", each, lived(each)) for each in (a_scenario(), a_scenario(spares=1)))
    saved = without.figures["lost_minutes"].mean - with_one.figures["lost_minutes"].mean
    assert saved == pytest.approx(with_one.figures["faults"].mean)
    gpu_hours = with_one.figures["lost_gpu_hours"].mean - without.figures["lost_gpu_hours"].mean
    assert gpu_hours == pytest.approx(8 * 240 - saved / 60 * NODES * 8)


def test_a_run_that_ended_trains_nothing_in_the_rest() -> None:
    scenario = a_scenario()
    half = Outcome(
        seed=1,
        elapsed_s=DAYS * DAY_S / 2,
        trained_s=DAYS * DAY_S / 2,
        full_s=DAYS * DAY_S / 4,
        lost_s={},
        faults={},
        ended="crash loop",
    )
    found = verdict("x", scenario, [half])
    assert found.figures["ettr"].mean == 1.0
    assert found.figures["goodput"].mean == 0.25  # on half of its nodes
    assert found.ended == {"crash loop": 1}
    assert found.by_cause["run ended"].mean == found.by_phase[LostTo.WAIT.value].mean == DAYS * 1440 / 2


def test_without_a_price_there_is_no_money() -> None:
    assert "lost_money" not in verdict("x", a_scenario(), lived(a_scenario(), 2)).figures


@pytest.mark.parametrize(("share", "value"), [(0.0, 1.0), (0.5, 5.0), (0.95, 10.0), (1.0, 10.0), (0.11, 2.0)])
def test_a_quantile_is_a_value_that_was_there(share: float, value: float) -> None:
    assert quantile([float(each) for each in range(1, 11)], share) == value


# Comparing.


def test_the_same_faults_tell_two_policies_apart_that_the_spread_of_runs_would_hide() -> None:
    """Saving twice as often saves 2.5 minutes a fault: less than runs differ by, and the same in each of them."""
    often, seldom = a_scenario(interval_s=300.0), a_scenario(interval_s=600.0)
    found = compared(
        Side("often", often, lived(often, 8)), Side("seldom", seldom, lived(seldom, 8)), "lost_gpu_hours"
    )
    minutes = found.of("lost_minutes")
    assert found.winner == minutes.better == "often"
    assert minutes.change.mean == pytest.approx(2.5 * found.of("faults").first.mean)
    assert minutes.change.half < minutes.first.half + minutes.second.half
    assert (minutes.first.low or 0) < minutes.second.mean < 2 * (minutes.first.high or 0)


def test_two_policies_that_are_alike_differ_by_noise() -> None:
    """The same policy with other seeds under the same numbers: about one in twenty such comparisons tells."""
    wrong = 0
    for place in range(40):
        ours = lived(a_scenario(), 10, 100 * place)
        theirs = [
            msgspec.structs.replace(each, seed=seed.seed)
            for seed, each in zip(ours, lived(a_scenario(), 10, 100 * place + 50), strict=True)
        ]
        found = compared(Side("a", a_scenario(), ours), Side("b", a_scenario(), theirs), "ettr")
        wrong += bool(found.winner)
        assert bool(found.winner) or (found.of("ettr").seeds_needed or 0) > 10 or found.of("ettr").change.mean == 0
    assert wrong <= 6


def test_only_seeds_of_both_are_compared() -> None:
    found = compared(
        Side("a", a_scenario(), lived(a_scenario(), 5)), Side("b", a_scenario(), lived(a_scenario(), 5, 3)), "ettr"
    )
    assert found.seeds == (3, 4, 5)
    assert found.of("ettr").change.mean == 0.0


def test_what_cannot_be_compared_is_refused() -> None:
    ours = Side("a", a_scenario(), lived(a_scenario(), 2))
    longer = msgspec.structs.replace(a_scenario(), days=11.0)
    for other, by, says_ in (
        (Side("b", longer, lived(longer, 2)), "ettr", "same days"),
        (Side("b", a_scenario(), lived(a_scenario(), 2, 9)), "ettr", "no seed"),
        (ours, "lost_money", "--by"),
        (ours, "luck", "--by"),
    ):
        with pytest.raises(InvalidInput, match=says_):
            compared(ours, other, by)


# Sweeping.


def test_axes_are_values_and_ranges() -> None:
    found = axes(["spares=0..64..16", "interval=auto,5m,5m", "n=2..3,7"])
    assert [each.values for each in found] == [("0", "16", "32", "48", "64"), ("auto", "5m"), ("2", "3", "7")]
    every = list(points(found))
    assert len(every) == 5 * 2 * 3
    assert [says(each) for each in every[:2]] == ["spares=0 interval=auto n=2", "spares=0 interval=auto n=3"]


@pytest.mark.parametrize(
    "word",
    [
        *("spares", "spares=", "=3", "spares=3,,4", "spares=9..3", "spares=1..", "spares=1..9..0", "spares=-1..3"),
        *("spares=0..99999999999", "spares=0..9999999", "spares=1..2..3..4", "spares=a..b"),
    ],
)
def test_an_odd_axis_is_refused(word: str) -> None:
    with pytest.raises(InvalidInput, match="--sweep"):
        axes([word])


def test_too_many_points_and_an_axis_twice_are_refused() -> None:
    for words in (["a=0..999", "b=0..999"], ["a=1", "a=2"], []):
        with pytest.raises(InvalidInput, match="--sweep"):
            axes(words)


def test_the_best_comes_first_and_what_noise_hides_ties() -> None:
    tried = []
    for seconds in (100.0, 60_000.0, 600.0, 600.0):
        scenario = a_scenario(interval_s=seconds)
        tried.append(({"interval": f"{seconds:g}s"}, Side("", scenario, lived(scenario, 5))))
    found = ranked(tried, "ettr")
    assert [each.point["interval"] for each in found] == ["100s", "600s", "600s", "60000s"]
    assert [each.ties for each in found] == [True, False, False, False]
    again = ranked([*tried[2:], tried[1]], "lost_gpu_hours")
    assert [each.ties for each in again] == [True, True, False]
    assert all(a.verdict.figures["ettr"].mean >= b.verdict.figures["ettr"].mean for a, b in pairwise(found))


@pytest.mark.parametrize("by", ["lost_money", "faults", "rounds", "", "ETTR"])
def test_what_nothing_can_be_ranked_by_is_refused(by: str) -> None:
    with pytest.raises(InvalidInput, match="--by"):
        ranked([({}, Side("", a_scenario(), lived(a_scenario(), 2)))], by)


def test_a_page_counts() -> None:
    scenario = a_scenario()
    policy = msgspec.structs.replace(scenario.policy, restarts=RestartBudget(count=0))
    paged = msgspec.structs.replace(scenario, policy=policy)
    found = compared(Side("a", scenario, lived(scenario, 3)), Side("b", paged, lived(paged, 3)), "pages")
    assert found.of("pages").change.mean == 1.0
    assert found.of("pages").first.seeds == 3
