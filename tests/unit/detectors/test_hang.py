"""A round that stands still: when it is called hung, when it is not, and who is named."""

import pytest
from hangworld import LOOK_S, REPORT_S, World
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from signals import JOB, a_round, policy, rank_sample, reported, started

from holdfast.api.finding import Confidence, FindingKind, Subject
from holdfast.api.rankrecord import Phase
from holdfast.api.round import Endpoint, MemberRanks, ReplicaGroup
from holdfast.api.telemetry import ProcessState, Unreadable
from holdfast.watchdog.detectors.detector import Heard, RoundStarted, RoundStopped
from holdfast.watchdog.detectors.hang import LATE_S_MIN, UNDECIDED_S_MIN, HangDetector, Seen, name_the_missing


def test_a_stopped_worker_is_named_with_certainty_and_both_sides_are_shown() -> None:
    world = World().trains(50)
    world.all_wait_but(2)
    stopped_at = world.stop(2)
    world.passes(5.0)
    (finding,) = world.found
    assert finding.kind is FindingKind.HANG
    assert finding.subject == Subject(JOB, node="n1", member="m1", rank=2)
    assert (finding.confidence, finding.cause) == (Confidence.CERTAIN, "the process is stopped")
    assert (finding.round, finding.also) == (1, ())
    assert finding.began_at == pytest.approx(stopped_at, abs=0.2)
    culprit, others = finding.evidence
    assert "rank 2 did not arrive: process Stopped, in own after step 50, collective 50" in culprit.says
    assert "ranks 0-1, 3 in backward after step 50, collective 51" in others.says


@pytest.mark.parametrize("step_time_s", [0.02, 0.1, 0.3, 0.5, 2.0, 20.0])
def test_a_stopped_worker_is_named_in_time_to_be_healed_within_two_seconds_or_five_steps(
    step_time_s: float,
) -> None:
    world = World(step_time_s=step_time_s).trains(max(8, int(8.0 / step_time_s)))
    world.all_wait_but(1)
    stopped_at = world.stop(1)
    world.passes(200.0)
    assert world.found_at is not None
    healing_s = 0.35
    assert world.found_at - stopped_at + healing_s <= max(2.0, 5 * step_time_s)


def test_a_worker_stopped_before_the_first_step_is_named_too() -> None:
    world = World().passes(30.0)
    world.stop(0)
    world.passes(10.0)
    assert [finding.subject.rank for finding in world.found] == [0]


@pytest.mark.parametrize("process", [ProcessState.STOPPED, ProcessState.RUNNING])
def test_one_that_stands_still_before_it_takes_up_the_round_its_replica_group_goes_on_in_is_named_in_that(
    process: ProcessState,
) -> None:
    world = World().trains(50)
    shares = (MemberRanks("m1", "n1", 0, 2), MemberRanks("m0", "n0", 2, 2))
    groups = tuple(ReplicaGroup(1, 1, Endpoint("127.0.0.1", 29500), trains=True) for _ in shares)
    world.detector.observe(RoundStarted(structs.replace(a_round(2), ranks=shares, groups=groups)), world.now)
    stuck = world.ranks[0]
    stuck.process = process
    others = {"n0": [3], "n1": [0, 1]}
    for _ in range(100):
        world.now += LOOK_S
        for node, ranks in others.items():
            waiting = [
                rank_sample(rank, round=2, phase=Phase.STARTUP, step=None, progress_age_s=world.now)
                for rank in ranks
            ]
            behind = [stuck.sample(world.now, 1)] if node == "n0" else []
            world._hear(world.detector.observe(reported(node, *behind, *waiting), world.now))
    (finding,) = world.found
    assert finding.subject == Subject(JOB, node="n0", member="m0", rank=2)
    assert (finding.confidence, finding.round) == (Confidence.CERTAIN, 2)


def test_collectives_tell_within_a_replica_group_alone() -> None:
    """Each counts its own, since it was formed."""
    seen = {
        rank: Seen(rank_sample(rank, step=50, collective_sequence=issued), 9.0, 1.0)
        for rank, issued in enumerate((501, 500, 51, 51))
    }
    named = name_the_missing(seen, (), [range(2), range(2, 4)])
    assert (named.ranks, named.cause) == ((1,), "did not reach the collective")


def goes_on(world: World, seconds: float, behind: dict[int, int], **entered: object) -> World:
    """Two replica groups go on in a newer round. Ranks in `behind` stay in their step of the round before, so many
    collectives further than they were; the others take it up and wait.
    """
    shares = (MemberRanks("m0", "n0", 0, 2), MemberRanks("m1", "n1", 2, 2))
    groups = tuple(ReplicaGroup(1, 1, Endpoint("127.0.0.1", 29500), trains=True) for _ in shares)
    world.detector.observe(RoundStarted(structs.replace(a_round(2), ranks=shares, groups=groups)), world.now)
    began = world.now
    for rank, issued in behind.items():
        world.ranks[rank].sequence = (world.ranks[rank].sequence or 0) + issued
    while world.now < began + seconds and not world.found:
        world.now += REPORT_S
        waits = {"phase": Phase.STARTUP, "step": None, "progress_age_s": world.now - began} | entered
        samples = [rank_sample(rank, round=2, **waits) for rank in range(4)]
        for rank in behind:
            world.ranks[rank].beat_at = world.now
            samples[rank] = world.ranks[rank].sample(world.now, 1)
        for node, of_it in (("n0", samples[:2]), ("n1", samples[2:])):
            world._hear(world.detector.observe(reported(node, *of_it), world.now))
    return world


def test_one_that_runs_and_hangs_before_it_takes_up_the_round_has_the_time_of_a_step() -> None:
    world = World().trains(50)
    began = world.now
    # Rank 0 has voted, and waits for rank 1 of its own group.
    (finding,) = goes_on(world, 60.0, {0: 1, 1: 0}).found
    assert world.now <= began + LATE_S_MIN + 2 * REPORT_S
    assert finding.subject == Subject(JOB, node="n0", member="m0", rank=1)
    assert (finding.confidence, finding.round) == (Confidence.PROBABLE, 2)
    assert finding.began_at == pytest.approx(began)
    says = [each.says for each in finding.evidence]
    assert says[0].startswith("rank 1 did not arrive: process Running, in own after step 50")
    assert any(each.startswith("ranks 2-3 in startup before its first step") for each in says)


def test_a_whole_group_that_does_not_take_up_the_round_is_named_after_more_time() -> None:
    world = World().trains(50)
    began = world.now
    (finding,) = goes_on(world, 60.0, {0: 0, 1: 0}).found
    assert world.now >= began + UNDECIDED_S_MIN
    assert (finding.subject.rank, [each.rank for each in finding.also]) == (0, [1])
    assert (finding.confidence, finding.cause) == (Confidence.UNKNOWN, "never entered the round")


def test_of_ranks_none_of_which_has_taken_up_the_round_the_one_that_is_waited_for_is_named() -> None:
    world = World().trains(50)
    (finding,) = goes_on(world, 60.0, {0: 1, 1: 1, 2: 1, 3: 0}).found
    assert (finding.subject.rank, finding.confidence) == (3, Confidence.PROBABLE)


def test_nobody_is_named_where_none_has_taken_up_the_round_and_all_are_alike() -> None:
    (finding,) = goes_on(World().trains(50), 60.0, dict.fromkeys(range(4), 0)).found
    assert (finding.subject, finding.confidence) == (Subject(JOB), Confidence.UNKNOWN)


def test_one_that_is_slow_to_take_up_the_round_has_the_time_that_the_policy_gives() -> None:
    world = World(detector=HangDetector(policy(hang_timeout_s=60.0))).trains(50)
    assert goes_on(world, 45.0, {0: 0}).found == []
    slow = World(step_time_s=15.0).trains(10)
    assert goes_on(slow, 45.0, {0: 0}).found == []


def test_one_that_saves_before_it_takes_up_the_round_has_the_time_of_a_save() -> None:
    world = World().trains(50)
    world.ranks[0].phase = Phase.CHECKPOINT
    assert goes_on(world, 45.0, {0: 0}).found == []


def test_before_the_job_has_shown_its_step_times_nobody_is_named_for_a_round_not_taken_up() -> None:
    assert goes_on(World().trains(1), 300.0, {0: 0}).found == []


@pytest.mark.parametrize("entered", [{"step": 51}, {"phase": Phase.FORWARD}, {"progress_age_s": 0.0}])
def test_while_the_others_train_nobody_waits_for_one_that_has_not_taken_up_the_round(
    entered: dict[str, object],
) -> None:
    """Groups that average after many steps alone."""
    assert goes_on(World().trains(50), 60.0, {0: 0}, **entered).found == []


@pytest.mark.parametrize("steps", [1, 2, 3, 10])
def test_a_worker_stopped_after_its_very_first_steps_is_named_as_fast(steps: int) -> None:
    world = World(step_time_s=0.05).trains(steps)
    world.all_wait_but(3)
    stopped_at = world.stop(3)
    world.passes(10.0)
    assert world.found_at is not None
    assert world.found_at - stopped_at <= 1.3


def test_a_live_rank_that_hangs_in_the_first_second_is_named_by_the_steps_it_made() -> None:
    world = World(step_time_s=0.05).trains(15)
    world.all_wait_but(3)
    world.passes(LATE_S_MIN + 2.0)
    assert [finding.subject.rank for finding in world.found] == [3]


def test_a_worker_that_a_debugger_stops_for_a_moment_is_no_hang() -> None:
    world = World().passes(60.0)
    world.stop(0)
    world.passes(0.2)
    world.ranks[0].process = ProcessState.RUNNING
    assert world.passes(60.0).found == []


def test_several_stopped_workers_are_all_named() -> None:
    world = World().trains(50)
    world.all_wait_but(2, 3)
    world.stop(2, 3)
    world.passes(5.0)
    (finding,) = world.found
    assert [finding.subject.rank, *(other.rank for other in finding.also)] == [2, 3]


def test_a_stopped_worker_whose_pulse_is_unknown_is_judged_by_its_progress() -> None:
    world = World().trains(50)
    world.ranks[1].beat_at = None
    world.stop(1)
    assert len(world.passes(5.0).found) == 1


def test_a_worker_that_lost_its_pulse_while_others_beat_is_named_with_certainty() -> None:
    world = World().trains(50)
    world.all_wait_but(3)
    world.ranks[3].beats = False
    world.passes(20.0)
    (finding,) = world.found
    assert (finding.subject.rank, finding.confidence) == (3, Confidence.CERTAIN)
    assert finding.cause == "the process lost its pulse"
    assert world.found_at is not None
    assert world.found_at < world.now - 10.0


def test_a_lost_pulse_is_no_proof_when_nobody_beats() -> None:
    world = World().trains(50)
    world.all_wait_but()
    for worker in world.ranks.values():
        worker.beats = False
    world.passes(60.0)
    (finding,) = world.found
    assert finding.confidence is Confidence.UNKNOWN


def test_a_live_rank_behind_in_steps_is_probably_the_one() -> None:
    world = World().trains(50)
    for rank in (0, 1, 3):
        world.ranks[rank].step = 51
    world.all_wait_but(2)
    world.passes(20.0)
    (finding,) = world.found
    assert (finding.subject.rank, finding.confidence) == (2, Confidence.PROBABLE)
    assert finding.cause == "did not reach the collective"


def test_a_live_rank_behind_in_collectives_is_probably_the_one_and_gets_more_time() -> None:
    world = World().trains(50)
    world.all_wait_but(0, phase=Phase.DATA)
    began_at = world.now
    assert world.passes(LATE_S_MIN - 0.2).found == []
    world.passes(3.0)
    (finding,) = world.found
    assert (finding.subject.rank, finding.confidence) == (0, Confidence.PROBABLE)
    assert finding.began_at == pytest.approx(began_at)


@pytest.mark.parametrize("phase", [Phase.DATA, Phase.FORWARD])
def test_with_collectives_unknown_the_phase_tells_who_has_not_arrived(phase: Phase) -> None:
    world = World().trains(50)
    for worker in world.ranks.values():
        worker.sequence = None
    world.all_wait_but(1, 2)
    for rank in (1, 2):
        world.ranks[rank].phase = phase
    world.passes(20.0)
    (finding,) = world.found
    assert (finding.subject.rank, [each.rank for each in finding.also]) == (1, [2])
    assert (finding.confidence, finding.cause) == (Confidence.PROBABLE, f"stuck in {phase.name.lower()}")


@pytest.mark.parametrize("odd_one", [Phase.BACKWARD, Phase.OPTIMIZER])
def test_when_nobody_stands_out_all_are_meant_none_is_named_and_there_is_patience(odd_one: Phase) -> None:
    world = World().trains(50)
    world.all_wait_but()
    world.ranks[3].phase = odd_one
    assert world.passes(UNDECIDED_S_MIN - 1.5).found == []
    world.passes(10.0)
    (finding,) = world.found
    assert finding.subject == Subject(JOB)
    assert (finding.confidence, finding.cause) == (Confidence.UNKNOWN, "every rank waits")
    assert [each.rank for each in finding.also] == [0, 1, 2, 3]


def test_a_hang_is_found_once_per_round_and_anew_in_the_next() -> None:
    world = World().trains(50)
    world.stop(2)
    assert len(world.passes(30.0).found) == 1
    world.enter(2)
    world.trains(5)
    world.stop(1)
    world.passes(30.0)
    assert [finding.round for finding in world.found] == [1, 2]


def test_step_times_of_earlier_rounds_count_but_not_for_the_first_step() -> None:
    world = World().trains(50)
    world.enter(2)
    world.all_wait_but(0)
    world.passes(590.0)
    assert world.found == []
    world.passes(20.0)
    assert len(world.found) == 1


def test_before_the_job_has_shown_its_step_times_it_has_the_startup_time_out() -> None:
    world = World(step_time_s=20.0).trains(2)
    assert world.detector.stalled_after_s(world.now) == 1.0
    world.all_wait_but(0)
    assert world.passes(590.0).found == []
    assert len(world.passes(20.0).found) == 1


def test_the_policys_time_out_replaces_the_distribution() -> None:
    world = World(detector=HangDetector(policy(hang_timeout_s=40.0)))
    assert world.detector.stalled_after_s(0.0) == 40.0
    world.trains(50)
    world.all_wait_but()
    assert world.passes(39.0).found == []
    assert len(world.passes(3.0).found) == 1


@pytest.mark.parametrize(("step_time_s", "after_s"), [(0.02, 1.0), (0.25, 1.0), (0.5, 2.0), (30.0, 120.0)])
def test_agents_are_told_to_report_a_stall_at_the_first_deadline(step_time_s: float, after_s: float) -> None:
    world = World(step_time_s=step_time_s).trains(max(5, int(5.0 / step_time_s)))
    assert world.detector.stalled_after_s(world.now) == pytest.approx(after_s)


@settings(max_examples=25)
@given(pauses=st.lists(st.floats(0.02, 3.9), min_size=10, max_size=40))
def test_a_slow_but_moving_round_is_no_hang(pauses: list[float]) -> None:
    world = World(step_time_s=1.0).trains(10)
    for pause in pauses:
        world.step_time_s = pause
        world.trains(1)
    assert world.found == []


def test_a_slow_rank_whose_phases_move_is_no_hang() -> None:
    world = World().trains(50)
    world.all_wait_but(2)
    for phase in (Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER):
        world.ranks[2].phase, world.ranks[2].published_at = phase, world.now
        world.passes(4.0)
    assert world.found == []


def test_collectives_that_go_on_are_progress_even_when_nothing_is_published() -> None:
    world = World().trains(50)
    for _ in range(60):
        for worker in world.ranks.values():
            worker.sequence = (worker.sequence or 0) + 1
        world.passes(1.0)
    assert world.found == []
    world.all_wait_but(1)
    assert len(world.passes(10.0).found) == 1


def test_an_idle_rank_makes_the_others_wait_for_as_long_as_it_beats() -> None:
    world = World().trains(50)
    world.all_wait_but(0)
    world.ranks[0].phase = Phase.IDLE
    assert world.passes(900.0).found == []
    world.ranks[0].beats = False
    world.passes(70.0)
    assert [finding.subject.rank for finding in world.found] == [0]


def test_a_checkpoint_takes_its_time_and_a_longer_one_five_times_what_was_seen() -> None:
    world = World().trains(50)
    world.all_wait_but(0)

    def save(rank: int, seconds: float) -> None:
        world.ranks[rank].phase = Phase.CHECKPOINT
        world.ranks[rank].published_at = world.ranks[rank].phase_at = world.now
        world.passes(seconds)

    save(0, 50.0)
    world.trains(3)
    world.all_wait_but(0)
    save(0, 240.0)
    assert world.found == []
    world.passes(20.0)
    (finding,) = world.found
    assert (finding.subject.rank, finding.confidence) == (0, Confidence.PROBABLE)


def test_back_to_back_checkpoints_are_each_a_save_that_ended() -> None:
    world = World().trains(50)
    for _ in range(2):
        for worker in world.ranks.values():
            worker.phase, worker.published_at, worker.phase_at = Phase.CHECKPOINT, world.now, world.now
        world.passes(30.0)
    assert world.passes(100.0).found == [], "5 x 30 s are allowed now"
    assert len(world.passes(70.0).found) == 1


def test_a_node_whose_agent_is_silent_is_unknown_and_no_hang_is_called() -> None:
    world = World().trains(50)
    world.all_wait_but(0)
    world.passes(1.0)
    world.silent.add("n1")
    assert world.passes(120.0).found == []
    world.silent.clear()
    assert len(world.passes(2.0).found) == 1


def test_a_stopped_rank_is_named_though_another_nodes_agent_is_silent() -> None:
    world = World().trains(50)
    world.silent.add("n1")
    world.stop(0)
    assert [finding.subject.rank for finding in world.passes(5.0).found] == [0]


def test_silence_of_all_agents_proves_nothing() -> None:
    world = World().trains(50)
    world.silent |= {"n0", "n1"}
    world.passes(1000.0)
    assert world.found == []
    assert world.detector.elapse(world.now) == ()
    assert world.detector.next_wakeup() is None


def test_a_rank_that_never_entered_is_named_after_the_startup_time_out() -> None:
    world = World()
    del world.ranks[3]
    assert world.passes(599.0).found == []
    world.passes(5.0)
    (finding,) = world.found
    assert (finding.subject.rank, finding.cause) == (3, "never entered the round")
    assert "never published" in finding.evidence[0].says


def test_a_rank_that_never_publishes_though_steps_complete_is_unknown() -> None:
    world = World()
    del world.ranks[3]
    world.trains(50)
    world.all_wait_but()
    assert world.passes(2000.0).found == []


@pytest.mark.parametrize("unreadable", [True, False])
def test_an_absent_rank_of_a_node_that_cannot_be_read_is_unknown(unreadable: bool) -> None:
    detector = HangDetector(policy())
    detector.observe(started(1, nodes=2, local_size=1), 0.0)
    stuck = rank_sample(0, step=None, phase=Phase.STARTUP, progress_age_s=700.0)
    reasons = (Unreadable("rank-000.record", "torn"),) if unreadable else ()
    assert detector.observe(reported("n1", unreadable=reasons), 700.0) == ()
    assert len(detector.observe(reported("n0", stuck), 700.1)) == (0 if unreadable else 1)


def test_an_unmodified_script_publishes_nothing_and_is_never_called_hung() -> None:
    world = World(ranks={})
    world.ranks.clear()
    assert world.passes(3600.0).found == []


def test_ranks_that_ended_leave_the_others_time_to_finish() -> None:
    world = World().trains(50)
    for rank in (1, 2, 3):
        world.ranks[rank].process = ProcessState.GONE
    assert world.passes(55.0).found == []
    world.passes(10.0)
    (finding,) = world.found
    assert (finding.confidence, finding.cause) == (Confidence.CERTAIN, "the process is gone")
    assert [finding.subject.rank, *(each.rank for each in finding.also)] == [1, 2, 3]


def test_a_round_whose_processes_are_all_gone_is_for_others_to_judge() -> None:
    world = World().trains(50)
    for worker in world.ranks.values():
        worker.process = ProcessState.GONE
    assert world.passes(900.0).found == []


def test_samples_of_another_round_or_of_a_rank_that_is_elsewhere_do_not_count() -> None:
    detector = HangDetector(policy(hang_timeout_s=1.0))
    detector.observe(started(5), 0.0)
    stopped = rank_sample(0, process=ProcessState.STOPPED, progress_age_s=50.0, pulse_age_s=50.0)
    assert detector.observe(reported("n0", structs.replace(stopped, round=4)), 60.0) == ()
    assert detector.observe(reported("n1", structs.replace(stopped, round=5)), 60.0) == ()
    assert detector.observe(reported("n0", structs.replace(stopped, round=5, rank=99)), 60.0) == ()
    assert len(detector.observe(reported("n0", structs.replace(stopped, round=5)), 60.0)) == 1


def test_nothing_is_judged_while_no_round_runs() -> None:
    detector = HangDetector(policy(hang_timeout_s=1.0))
    stopped = rank_sample(0, process=ProcessState.STOPPED, progress_age_s=50.0, pulse_age_s=50.0)
    assert detector.observe(reported("n0", stopped), 60.0) == ()
    detector.observe(started(1), 60.0)
    detector.observe(RoundStopped(2), 61.0)
    assert detector.observe(reported("n0", stopped), 62.0) == ()
    assert detector.observe(Heard("m0"), 63.0) == ()


def test_a_respawned_process_starts_with_its_own_progress() -> None:
    detector = HangDetector(policy(hang_timeout_s=3.0))
    detector.observe(started(1, nodes=1, local_size=2), 0.0)
    waiting = rank_sample(1, progress_age_s=9.0, collective_sequence=101)
    before = rank_sample(0, pid=1, progress_age_s=0.1, collective_sequence=50)
    respawned = rank_sample(0, pid=2, progress_age_s=5.1, collective_sequence=60)
    assert detector.observe(reported("n0", before, waiting), 60.0) == ()
    assert len(detector.observe(reported("n0", respawned, waiting), 65.0)) == 1


def test_a_script_without_a_pulse_that_a_debugger_stops_for_a_moment_is_not_called_hung() -> None:
    detector = HangDetector(policy())
    detector.observe(started(number=1), 0.0)
    running = rank_sample(0, round=1, phase=Phase.IDLE, progress_age_s=90.0, phase_age_s=90.0, pulse_age_s=None)
    stopped = structs.replace(running, process=ProcessState.STOPPED)
    for at, sample in ((90.0, running), (90.4, stopped), (90.7, running), (91.0, stopped), (91.4, stopped)):
        assert detector.observe(reported("n0", sample), at) == ()
    (finding,) = detector.observe(reported("n0", stopped), 91.6)
    assert finding.cause == "the process is stopped"
    assert finding.began_at == 91.0, "when it was seen stopped, not when its process started"
