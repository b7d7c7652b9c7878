"""Each kind of fault in a fleet with replica groups: what it costs those that go on, and the books add up."""

from functools import cache

import msgspec
import pytest
from closedforms import NODES
from test_fault_kinds import DAYS, NAME, WANTED, policy

from holdfast.simulator.fault import FaultRate, Spread, Symptom
from holdfast.simulator.live import live
from holdfast.simulator.outcome import LostTo, Outcome
from holdfast.simulator.scenario import DAY_S, Fleet, Scenario

GROUP = 2
# For these everybody goes back.
OF_EVERYBODY = (Symptom.NAN, Symptom.CORRUPTION)
# These stop nobody; a hang that comes again before a new step restarts everybody.
OTHERS = (Symptom.SLOW, Symptom.HOT, Symptom.HANG)
WITHIN_S = 60.0


@cache
def befallen(symptom: Symptom, group: int, infrastructure: float = 1.0) -> Outcome:
    rate = WANTED / (NODES * DAYS) * 1000.0
    fault = FaultRate(
        NAME, symptom, infrastructure=infrastructure, repair=Spread(600.0), lasts=Spread(120.0), rate=rate
    )
    asked = msgspec.structs.replace(policy(), memory=None, nodes_min=NODES // 2, replica_nodes=group)
    return live(Scenario(asked, Fleet(NODES, spares=NODES, free=NODES), (fault,), DAYS, step_s=5.0), 1)


@pytest.mark.parametrize("symptom", Symptom)
def test_what_is_trained_and_what_is_lost_is_all_the_time_there_was(symptom: Symptom) -> None:
    outcome = befallen(symptom, GROUP)
    lost = sum(sum(phases.values()) for phases in outcome.lost_s.values())
    assert outcome.faults[NAME]
    assert outcome.trained_s + lost == pytest.approx(outcome.elapsed_s)
    assert 0.0 < outcome.full_s <= outcome.trained_s + 1e-6
    assert not outcome.ended
    assert outcome.wrong == 0 or symptom is Symptom.FALSE_ALARM


@pytest.mark.parametrize("symptom", [each for each in Symptom if each not in (*OF_EVERYBODY, *OTHERS)])
def test_the_others_do_not_wait_until_a_group_is_back(symptom: Symptom) -> None:
    """They wait until it is known that it is gone, for groups to meet anew, and for a copy."""
    whole, groups = befallen(symptom, 0), befallen(symptom, GROUP)
    lost = groups.lost_s.get(NAME, {})
    assert LostTo.REPLAY not in lost, "no step was given up"
    assert sum(lost.values()) < WITHIN_S * groups.faults[NAME]
    assert groups.ettr >= whole.ettr - 1e-3


def test_a_group_that_is_away_is_missed_in_goodput_alone() -> None:
    outcome = befallen(Symptom.NODE_LOST, GROUP)
    away_s = outcome.trained_s - outcome.full_s
    assert 0.0 < away_s < outcome.faults[NAME] * 120.0 * GROUP / NODES
    assert outcome.full_s / (DAYS * DAY_S) < outcome.ettr


def test_everybody_goes_back_for_what_is_wrong_with_the_state() -> None:
    for symptom in OF_EVERYBODY:
        assert befallen(symptom, GROUP).lost_s[NAME][LostTo.REPLAY] > 0.0


def test_a_hang_in_which_nobody_stands_out_restarts_everybody() -> None:
    outcome = befallen(Symptom.HANG, GROUP, infrastructure=0.0)
    assert outcome.lost_s[NAME][LostTo.REPLAY] > 0.0
    assert outcome.right == outcome.wrong == 0
