"""What one fault that is given does, to the second: how long it goes on, what it slows, what is known of it."""

import math

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
from holdfast.api.selftest import TestLevel, Verdict
from holdfast.simulator.fault import Fault, Happening, Reach, Spread, Symptom
from holdfast.simulator.fleet.fleetworld import FleetWorld
from holdfast.simulator.fleet.hazards import Hazards
from holdfast.simulator.fleet.strikes import behind
from holdfast.simulator.live import live
from holdfast.simulator.outcome import LostTo, Outcome
from holdfast.simulator.scenario import Fleet, Scenario, Times

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


def test_a_port_of_its_own_that_is_down_is_told_of_and_its_node_left() -> None:
    """Long before it is up again, which is what is waited for where nobody knows whose link it is."""
    fault = Fault(NAME, Symptom.LINK_FLAP, lasts=Spread(1800.0))
    outcome = befallen(fault)
    assert (outcome.right, outcome.wrong) == (1, 0)
    assert lost(outcome) < 200.0


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_so_large_a_share_of_tests_finds_a_broken_device(share: float) -> None:
    scenario = Scenario(POLICY, Fleet(NODES), (), 1.0, tests_find=share)
    world = FleetWorld(scenario, 1)
    world.begin()
    broken, sound = list(world.members.values())[:2]
    Hazards(world, scenario, 1)._befall(
        Fault(NAME, Symptom.CORRUPTION), world.machine_of(broken), infrastructure=True, comes_again=False
    )
    found = sum(world.verdict_of(broken) is Verdict.FAILED for _ in range(1000))
    assert found / 1000.0 == pytest.approx(share, abs=0.06)
    assert all(world.verdict_of(sound) is Verdict.PASSED for _ in range(100))


@pytest.mark.parametrize(("finds", "found"), [(1.0, 1), (0.0, 0)])
def test_a_broken_spare_is_found_by_its_tests_before_it_has_ranks(finds: float, found: int) -> None:
    policy = msgspec.structs.replace(
        POLICY, preflight=TestLevel.LIGHT, corruption=CorruptionPolicy(self_test_every_s=3600.0)
    )
    scenario = Scenario(policy, Fleet(NODES, spares=NODES), (), 1.0, 60.0, tests_find=finds)
    world = FleetWorld(scenario, 1)
    hazards = Hazards(world, scenario, 1)
    world.begin()
    world.run(7200.0)
    hazards._befall(Fault(NAME, Symptom.GPU_LOST), world.cluster.all[-1], infrastructure=True, comes_again=False)
    world.run(3 * 3600.0)
    assert (world.right, world.rounds) == (found, 1)


@pytest.mark.parametrize(("free", "away_s"), [(0, 3000.0), (1, 100.0)])
def test_a_node_is_missing_until_it_is_repaired_or_the_cluster_has_brought_another(
    free: int, away_s: float
) -> None:
    policy = msgspec.structs.replace(POLICY, spares=0, form_grace_s=1.0)
    fault = Fault(NAME, Symptom.NODE_LOST, infrastructure=0.0, repair=Spread(3000.0))
    scenario = Scenario(
        policy, Fleet(NODES, free=free), (), 0.25, 5.0, TIMES, happenings=(Happening(AT_S, fault, 0),)
    )
    outcome = live(scenario, 1)
    missing_s = (outcome.trained_s - outcome.full_s) * NODES  # one of so many
    brought_s = away_s + TIMES.provision.median_s * (free == 0)
    assert missing_s == pytest.approx(brought_s + TIMES.save_took_s, abs=15.0)  # it comes in with a checkpoint


def test_a_restart_takes_its_phases_one_after_the_other() -> None:
    """Communicators, new processes, eight nodes that meet, and a first step that takes longer; from memory."""
    outcome = befallen(Fault(NAME, Symptom.PROCESS_EXIT, infrastructure=0.0))
    meet_s = TIMES.join_s + TIMES.join_per_doubling_s * math.log2(NODES)
    restart_s = TIMES.stop_s + TIMES.start_s + meet_s + TIMES.first_step_s
    assert lost(outcome, LostTo.RESTART) == pytest.approx(restart_s, abs=0.2)
    assert lost(outcome, LostTo.RESTORE) == pytest.approx(TIMES.load_memory_s)


def test_who_is_paged_has_the_job_go_on() -> None:
    """Whose budget of restarts a death of a worker has spent."""
    policy = msgspec.structs.replace(POLICY, restarts=RestartBudget(count=0))
    outcome = befallen(Fault(NAME, Symptom.PROCESS_EXIT, infrastructure=0.0), policy=policy)
    assert outcome.pages == 1
    assert lost(outcome, LostTo.WAIT) == pytest.approx(TIMES.human.median_s, abs=1.0)


def test_a_switch_is_more_than_a_rack_and_less_than_the_job() -> None:
    """Of two and four machines, and all eight with ranks."""
    hit = []
    for reach in Reach:
        world = FleetWorld(Scenario(POLICY, Fleet(NODES, rack=2, switch=4), (), 1.0), 1)
        world.begin()
        hit.append(len(behind(world, world.cluster.all[1], Fault(NAME, Symptom.NODE_LOST, reach))))
    assert hit == [1, 4, 2, 8]


def test_what_was_wrong_before_a_rewind_is_not_wrong_with_what_is_restored_later() -> None:
    """Snapshots of a round whose wrong members have left are good, and a later corruption is told by a vote."""
    policy = msgspec.structs.replace(POLICY, corruption=CorruptionPolicy(fingerprint_every=100))
    befalls = (
        Fault("first", Symptom.CORRUPTION),
        Fault("exit", Symptom.PROCESS_EXIT),
        Fault("second", Symptom.CORRUPTION),
    )
    given = [Happening(AT_S + 2000.0 * place, fault, 2 * place + 1) for place, fault in enumerate(befalls)]
    fleet = Fleet(NODES, spares=NODES, rack=2, switch=4)
    outcome = live(Scenario(policy, fleet, (), 0.25, 5.0, TIMES, happenings=tuple(given)), 1)
    for name in ("first", "second"):
        assert 0.0 < lost(outcome, LostTo.REPLAY, name) < 2 * 100 * 5.0
    assert lost(outcome, LostTo.REPLAY, "") == pytest.approx(0.0, abs=5.0)
