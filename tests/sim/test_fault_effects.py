"""What one fault that is given does, to the second: how long it goes on, what it slows, what is known of it."""

import msgspec
import pytest

from holdfast.api.policy import (
    CheckpointInterval,
    CorruptionPolicy,
    MemoryPolicy,
    NoticeAction,
    Policy,
    RestartBudget,
)
from holdfast.simulator.fault import Fault, Happening, Reach, Spread, Symptom
from holdfast.simulator.fleetworld import FleetWorld
from holdfast.simulator.hazards import Hazards
from holdfast.simulator.live import live
from holdfast.simulator.outcome import LostTo, Outcome
from holdfast.simulator.scenario import Fleet, Scenario, Times
from holdfast.simulator.strikes import behind

NODES = 8
NAME = "what befalls it"
AT_S = 10_000.0
BROKEN_AT_S = 12_000.0
POLICY = Policy(
    "sim/effects",
    NODES - 2,
    NODES,
    spares=NODES,
    checkpoint_uri="/ckpt",
    memory=MemoryPolicy(),
    interval=CheckpointInterval(steps=100),
    corruption=CorruptionPolicy(fingerprint_every=0),
    restarts=RestartBudget(count=1000),
    notices=NoticeAction.MIGRATE,
)
TIMES = Times(provision=Spread(100.0), inspect=Spread(100.0), human=Spread(1000.0))


def befallen(*faults: Fault, policy: Policy = POLICY, times: Times = TIMES, script_saves: int = 0) -> Outcome:
    """The first fault at `AT_S`, any other at `BROKEN_AT_S`."""
    given = tuple(
        Happening(at_s, fault, place)
        for place, (at_s, fault) in enumerate(zip((AT_S, BROKEN_AT_S), faults, strict=False))
    )
    fleet = Fleet(NODES, spares=NODES, rack=2, switch=4)
    scenario = Scenario(policy, fleet, (), 0.25, 5.0, times, happenings=given, script_saves=script_saves)
    outcome = live(scenario, 1)
    assert outcome.ended == ""
    return outcome


def lost(outcome: Outcome, phase: LostTo | None = None, name: str = NAME) -> float:
    phases = outcome.lost_s.get(name, {})
    return sum(phases.values()) if phase is None else phases.get(phase, 0.0)


GONE = Fault("gone", Symptom.NODE_LOST, infrastructure=0.0)
NO_MEMORY = msgspec.structs.replace(POLICY, memory=None)


@pytest.mark.parametrize("lasts_s", [600.0, 1800.0])
def test_a_slow_rank_slows_all_for_as_long_as_it_lasts(lasts_s: float) -> None:
    fault = Fault(NAME, Symptom.SLOW, infrastructure=0.0, lasts=Spread(lasts_s), factor=3.0)
    assert lost(befallen(fault), LostTo.SLOW) == pytest.approx(lasts_s * 2.0 / 3.0, rel=0.01)


@pytest.mark.parametrize("lasts_s", [400.0, 1600.0])
def test_a_switch_that_is_down_holds_all_up_for_as_long_as_it_lasts(lasts_s: float) -> None:
    fault = Fault(NAME, Symptom.LINK_FLAP, Reach.SWITCH, infrastructure=0.0, lasts=Spread(lasts_s))
    assert lasts_s < lost(befallen(fault)) < lasts_s + 60.0


@pytest.mark.parametrize(("lasts_s", "restore_s"), [(5000.0, 360.0), (500.0, 120.0)])
def test_slow_storage_makes_a_restore_longer_while_it_lasts(lasts_s: float, restore_s: float) -> None:
    slow = Fault(NAME, Symptom.STORAGE_SLOW, lasts=Spread(lasts_s), factor=3.0)
    assert lost(befallen(slow, GONE, policy=NO_MEMORY), LostTo.RESTORE, "gone") == pytest.approx(restore_s)


@pytest.mark.parametrize(("every", "replayed_s"), [(0, AT_S), (100, 500.0)])
def test_a_script_saves_by_itself_where_the_policy_leaves_it_to_the_script(every: int, replayed_s: float) -> None:
    policy = msgspec.structs.replace(NO_MEMORY, interval=None)
    outcome = befallen(GONE, policy=policy, script_saves=every)
    assert lost(outcome, LostTo.REPLAY, "gone") == pytest.approx(replayed_s, rel=0.05 if not every else 1.0)
    assert (lost(outcome, LostTo.REPLAY, "gone") <= 520.0) == bool(every)


def test_what_comes_with_notice_is_left_behind_with_a_checkpoint() -> None:
    """With a checkpoint that takes 20 s, during which steps are made, unless the notice comes too late for it."""
    quick = msgspec.structs.replace(TIMES, save_took_s=20.0)
    replayed = [
        lost(
            befallen(
                Fault(NAME, Symptom.PREEMPTION, infrastructure=0.0, lasts=Spread(notice_s)),
                policy=NO_MEMORY,
                times=quick,
            ),
            LostTo.REPLAY,
        )
        for notice_s in (300.0, 0.1)
    ]
    assert replayed[0] <= 30.0 < 300.0 < replayed[1]


@pytest.mark.parametrize(("again_s", "is_found"), [(600.0, True), (1e9, False)])
def test_what_is_wrong_with_a_machine_shows_again_until_it_is_taken_out(again_s: float, is_found: bool) -> None:
    """One death of a worker is nobody's doing, several on one machine are."""
    fault = Fault(NAME, Symptom.PROCESS_EXIT, again=Spread(again_s))
    scenario = Scenario(POLICY, Fleet(NODES, spares=NODES), (), 0.25, 5.0, TIMES, tests_find=0.0)
    world = FleetWorld(scenario, 1)
    hazards = Hazards(world, scenario, 1)
    world.begin()
    world.run(600.0)
    hazards._befall(fault, world.cluster.all[0], infrastructure=True)
    world.run(6 * 3600.0)
    assert (world.right, world.wrongly) == (int(is_found), 0)
    assert (world.rounds > 2) == is_found


def test_a_switch_is_more_than_a_rack_and_less_than_the_job() -> None:
    """Of two and four machines, and all eight with ranks."""
    hit = []
    for reach in Reach:
        world = FleetWorld(Scenario(POLICY, Fleet(NODES, rack=2, switch=4), (), 1.0), 1)
        world.begin()
        hit.append(len(behind(world, world.cluster.all[1], Fault(NAME, Symptom.NODE_LOST, reach))))
    assert hit == [1, 4, 2, 8]
