"""Every kind of fault comes as often as it should, does what it is to do, and is charged for it; nothing is lost
from the books, and a seed is the same run each time.
"""

import math

import msgspec
import pytest
from closedforms import NODES, lived

from holdfast.api.policy import (
    CheckpointInterval,
    CorruptionPolicy,
    EvictionBudget,
    MemoryPolicy,
    NoticeAction,
    Policy,
    RestartBudget,
)
from holdfast.api.selftest import TestLevel
from holdfast.simulator.fault import Fault, FaultRate, Happening, Reach, Spread, Symptom
from holdfast.simulator.live import live
from holdfast.simulator.outcome import LostTo, Outcome
from holdfast.simulator.scenario import Fleet, Scenario, Times

NAME = "what befalls it"
WANTED = 10
DAYS = 0.5
# Of those nothing stands still.
HARMLESS = (Symptom.STORAGE_SLOW, Symptom.NODE_NOT_READY)


def policy() -> Policy:
    return Policy(
        "sim/kinds",
        NODES - 2,
        NODES,
        spares=NODES,
        processes_per_node=2,
        checkpoint_uri="/ckpt",
        memory=MemoryPolicy(),
        interval=CheckpointInterval(),
        preflight=TestLevel.LIGHT,
        corruption=CorruptionPolicy(fingerprint_every=100),
        restarts=RestartBudget(count=10**6),
        evictions=EvictionBudget(count=10**6, fraction=1.0),
        notices=NoticeAction.MIGRATE,
    )


def befallen(
    symptom: Symptom, *, infrastructure: float = 1.0, seed: int = 1, reach: Reach = Reach.NODE
) -> Outcome:
    rate = WANTED / (NODES * DAYS) * 1000.0
    repair, lasts = Spread(600.0), Spread(120.0)
    fault = FaultRate(NAME, symptom, reach, infrastructure, repair, lasts, rate=rate)
    return live(Scenario(policy(), Fleet(NODES, spares=NODES, free=NODES), (fault,), DAYS, step_s=5.0), seed)


def total(outcome: Outcome) -> float:
    return outcome.trained_s + sum(sum(phases.values()) for phases in outcome.lost_s.values())


@pytest.mark.parametrize("symptom", Symptom)
def test_it_comes_as_often_as_its_rate_says_and_costs_what_it_breaks(symptom: Symptom) -> None:
    outcome = befallen(symptom, infrastructure=0.5)
    # Machines that are away do not fail meanwhile, of which there are a few.
    assert outcome.faults[NAME] == pytest.approx(WANTED, abs=3.0 * math.sqrt(WANTED))
    assert total(outcome) == pytest.approx(outcome.elapsed_s)
    assert outcome.ended == ""
    lost = outcome.lost_s.get(NAME, {})
    assert sum(lost.values()) > 0.0 or symptom in HARMLESS, outcome
    assert (LostTo.SLOW in lost) == (symptom in (Symptom.SLOW, Symptom.HOT))
    assert bool(outcome.recoveries_s) == (symptom not in (Symptom.SLOW, Symptom.STORAGE_SLOW))


def test_many_faults_come_as_often_as_the_law_of_large_numbers_wants() -> None:
    days = 30.0
    rate = 400 / (NODES * days) * 1000.0
    fault = FaultRate(NAME, Symptom.STORAGE_SLOW, rate=rate, lasts=Spread(10.0))
    scenario = Scenario(
        msgspec.structs.replace(policy(), corruption=CorruptionPolicy(), interval=CheckpointInterval(seconds=1e6)),
        Fleet(NODES, spares=NODES),
        (fault,),
        days,
    )
    assert live(scenario, 3).faults[NAME] == pytest.approx(400, rel=0.1)


def test_what_is_the_machines_doing_ends_with_the_machine_out() -> None:
    outcome = befallen(Symptom.GPU_LOST, infrastructure=1.0)
    assert outcome.right >= outcome.faults[NAME] - 1
    assert outcome.wrong == 0
    assert outcome.missed == 0


def test_what_is_not_costs_no_machine_its_place() -> None:
    outcome = befallen(Symptom.PROCESS_EXIT, infrastructure=0.0)
    assert (outcome.right, outcome.wrong) == (0, 0)
    assert outcome.rounds > WANTED / 2


def test_a_false_alarm_sends_away_the_innocent() -> None:
    outcome = befallen(Symptom.FALSE_ALARM)
    assert outcome.right == 0
    assert outcome.wrong > 0


def test_a_rack_that_goes_takes_all_its_nodes_at_once() -> None:
    alone, rack = befallen(Symptom.NODE_LOST), befallen(Symptom.NODE_LOST, reach=Reach.RACK)
    assert rack.spares_used > 1.5 * alone.spares_used


def test_the_same_seed_is_the_same_run_and_another_one_is_not() -> None:
    one = befallen(Symptom.NODE_LOST, infrastructure=0.5)
    assert befallen(Symptom.NODE_LOST, infrastructure=0.5) == one
    assert befallen(Symptom.NODE_LOST, infrastructure=0.5, seed=2) != one


def test_faults_are_the_same_whatever_the_policy_makes_of_them() -> None:
    quick, slow = (lived(restart_s=restart_s, between_failures_s=3000.0, days=1.0) for restart_s in (1.0, 20.0))
    assert quick.faults == slow.faults
    assert quick.ettr > slow.ettr


def test_who_waits_long_for_the_others_of_a_large_round_does_not_hang() -> None:
    """All meet for longer than a step that hangs is waited for."""
    rate = WANTED / (NODES * DAYS) * 1000.0
    fault = FaultRate(NAME, Symptom.HOT, rate=rate, repair=Spread(600.0), lasts=Spread(120.0))
    fleet, slowly = Fleet(NODES, spares=NODES, free=NODES), Times(join_s=300.0)
    outcome = live(Scenario(policy(), fleet, (fault,), DAYS, step_s=5.0, times=slowly), 1)
    assert outcome.faults[NAME] > 3
    assert outcome.pages == 0
    assert outcome.rounds <= 1 + 2 * outcome.faults[NAME]


def test_storage_is_slow_whoever_goes_meanwhile() -> None:
    """No member tells of it, so that none has to be there."""
    lost, slow = Fault("gone", Symptom.NODE_LOST), Fault("slow", Symptom.STORAGE_SLOW, lasts=Spread(600.0))
    given = (*(Happening(999.0, lost, node) for node in range(2 * NODES)), Happening(1000.0, slow))
    fleet = Fleet(NODES, spares=NODES, free=NODES)
    for seed in range(5):  # who is the first one differs, and whether it has ranks
        outcome = live(Scenario(policy(), fleet, (), 0.05, step_s=5.0, happenings=given), seed)
        assert outcome.faults["gone"] == NODES
