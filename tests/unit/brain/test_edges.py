"""What changes nothing, and says so; and the rarer turns of the ladder."""

import pytest
from story import JOB, Story, policy, running

from holdfast.api.event import (
    CheckpointRecorded,
    Event,
    JobSubmitted,
    MemberEntered,
    MemberFinished,
    MemberLeft,
    MemberWarmed,
    RestoreReported,
    RoundProgressed,
)
from holdfast.api.finding import Confidence, Finding, FindingKind, Subject
from holdfast.api.incident import IncidentState, Rung
from holdfast.api.intervention import InterventionAction, InterventionState
from holdfast.api.plan import PodState
from holdfast.api.policy import EvictionBudget, RestartBudget, XidAction
from holdfast.api.round import Entry, Idle, Restore, Round, Tier
from holdfast.api.status import JobPhase
from holdfast.watchdog.brain.healing import NODE_FAULTS
from holdfast.watchdog.brain.ladder import decide
from holdfast.watchdog.brain.rounds import can_grow
from holdfast.watchdog.brain.step import Notify, TakeProfile


@pytest.mark.parametrize(
    ("event", "says"),
    [
        (MemberEntered("node-1", 99, reentrant=True), "node-1 entered round 99, which is over"),
        (MemberFinished("node-1", 99), "node-1 finished round 99, which is over"),
        (MemberLeft("nobody", "stopped"), "nobody is not a member"),
        (MemberWarmed("nobody"), "nobody is not a member"),
        (RestoreReported(99, 1), "round 99 is over"),
        (RoundProgressed(99, 1), "round 99 is over"),
        (CheckpointRecorded(99, 1, "/ckpt"), "round 99 is over: its checkpoint does not count"),
        (JobSubmitted(policy(nodes_max=2, spares=0)), "the same policy again"),
    ],
)
def test_old_and_strange_news_change_nothing(event: Event, says: str) -> None:
    story = running(2)
    before = story.state
    step = story.tell(event)
    assert (step.reason.rule, step.reason.says) == ("ignored", says)
    assert story.state == before


def test_a_member_that_warms_up_can_be_taken_in() -> None:
    story = running(3).lose(3).run(46)
    story.join(4, warm=False)
    story.tell(MemberWarmed("node-4"))
    assert "node-4" in story.commit(60).members


def test_a_node_that_is_gone_takes_its_member_with_it_whether_it_had_ranks_or_not() -> None:
    story = running(2, spares=2).gone(3)
    assert story.state.member("node-3") is None
    assert story.state.incidents == ()
    story.gone(2)
    assert story.incident.cause == "node gone: deleted"
    assert story.members == ["node-1", "node-4"]


def test_a_script_that_names_the_place_of_its_checkpoints_itself_resumes_from_it_too() -> None:
    story = Story(nodes_max=1, checkpoint_uri="").join(1)
    assert story.round.restore == Restore(Tier.CHECKPOINT, None, "", owner=story.state.incarnation)


def test_there_is_nothing_to_grow_before_the_first_round() -> None:
    story = Story(nodes_max=2).join(1)
    assert not can_grow(story.state)


def test_what_is_found_while_no_round_runs_is_of_the_past() -> None:
    story = running(2)
    story.ask(InterventionAction.PAUSE)
    story.save(41)
    before = story.state
    story.die(1)
    assert story.state == before


def test_a_member_lost_while_the_job_is_suspended_is_simply_gone() -> None:
    story = running(2)
    story.ask(InterventionAction.PAUSE)
    story.save(41).lose(1)
    assert story.state.incidents == ()
    assert story.state.member("node-1") is None
    story.lose(1)
    assert story.last is not None
    assert story.last.reason.says == "node-1 is not a member"


def test_more_bad_news_of_an_avoided_node_joins_its_incident_or_is_nothing_new() -> None:
    story = running(2, spares=1).xid(1, 79).xid(1, 48)
    assert len(story.state.incidents) == 1
    assert len(story.incident.evidence) == 2
    story.run(60)
    before = story.state
    story.xid(1, 48)
    assert story.state == before


def test_a_gpu_fault_of_a_spare_costs_the_round_nothing() -> None:
    story = running(2, spares=1)
    before = story.round
    story.find(FindingKind.GPU_LOST, 3, cause="GPU lost", round=None)
    assert story.round == before
    assert story.incident.state is IncidentState.RECOVERED
    assert [order.node for order in story.state.avoided] == ["node-3"]


def test_a_judgement_of_an_older_round_with_nothing_to_join_is_ignored() -> None:
    story = running(2).die(1).run(60)
    before = story.state
    story.die(2, round=story.round.number - 1)
    assert story.state == before


def test_a_fault_of_no_known_node_is_healed_and_held_against_nobody() -> None:
    story = running(2)
    story.find(FindingKind.HANG, 1, subject=Subject(JOB), confidence=Confidence.UNKNOWN, cause="no progress")
    assert story.state.suspicions == ()
    assert story.incident.rung is Rung.REENTER


@pytest.mark.parametrize("kind", [FindingKind.COLLECTIVE_FAILED, FindingKind.HANG])
def test_what_re_entering_did_not_mend_starts_everybody_anew(kind: FindingKind) -> None:
    story = running(2).find(kind, 1, cause="stuck", confidence=Confidence.UNKNOWN)
    assert story.round.entry is Entry.REENTER
    story.find(kind, 2, cause="stuck", confidence=Confidence.UNKNOWN)
    assert isinstance(story.state.desired, Idle)
    story.wait(11)
    assert story.round.entry is Entry.RESPAWN


def test_a_node_that_is_lost_three_times_within_the_hour_is_kept_away_from() -> None:
    story = running(2, evictions=EvictionBudget(fraction=1.0))
    for step in (60, 70):
        story.lose(1).run(step)
        assert story.state.avoided == ()
        story.join(1, boot=str(step)).commit(step + 1).run(step + 2)
        assert "node-1" in story.members
    story.lose(1)
    assert [order.node for order in story.state.avoided] == ["node-1"]


def test_a_contained_memory_error_restarts_the_ranks_of_its_node_and_keeps_the_node() -> None:
    story = running(2, processes_per_node=2)
    story.xid(2, 94, subject=Subject(JOB, node="node-2", gpu="GPU-1"))
    assert story.round.fresh_ranks == (2, 3)
    assert story.state.avoided == ()


def test_a_crash_loop_that_a_detector_finds_pages() -> None:
    story = running(1)
    finding = Finding(FindingKind.CRASH_LOOP, Subject(JOB), "again and again", (), Confidence.CERTAIN, 0.0)
    assert story.state.policy is not None
    decision = decide(story.state, story.state.policy, finding, story.now)
    assert decision is not None
    assert decision.rung is Rung.PAGE


def test_a_step_of_a_round_that_has_failed_since_ends_no_incident() -> None:
    story = running(2, nodes_min=2).lose(1)
    assert story.state.round is not None
    story.tell(RoundProgressed(story.state.round.number, 99))
    assert story.incident.state is IncidentState.OPEN
    assert story.state.high_step == 50


def test_a_restore_says_what_it_passed_over() -> None:
    story = running(2).die(1)
    step = story.tell(RestoreReported(story.round.number, 30, ("step-00000040: cut",)))
    assert step.reason.says.endswith("passed over step-00000040: cut")


@pytest.mark.parametrize(
    ("action", "fields", "says"),
    [
        (InterventionAction.RESIZE, {"nodes": 3}, "no multiple of 4"),
        (InterventionAction.SKIP_BATCHES, {"skip_batches": 5}, None),
    ],
)
def test_requests_that_depend_on_the_job(
    action: InterventionAction, fields: dict[str, object], says: str | None
) -> None:
    story = running(2, processes_per_node=2, model_ranks=4)
    outcome = story.ask(action, **fields)
    if says is None:
        assert story.round.restore.skip_batches == 5
    else:
        assert outcome.state is InterventionState.REFUSED
        assert says in outcome.outcome


def test_a_profile_is_asked_of_the_ranks_of_the_round_that_trains() -> None:
    story = running(2, processes_per_node=2)
    done = story.ask(InterventionAction.PROFILE, ranks=(3, 0, 3), steps=7)
    assert done.outcome == f"ranks 0, 3 of round {story.round.number} were asked to record 7 steps"
    assert [each for each in story.effects if isinstance(each, TakeProfile)] == [
        TakeProfile(story.round, (0, 3), 7)
    ]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"ranks": (4,)}, "profile.ranks: 4 is not accepted; give ranks from 0 to 3"),
        ({}, "profile.ranks: 0 ranks are not accepted; name 1 to 8"),
        ({"ranks": tuple(range(9))}, "profile.ranks: 9 ranks are not accepted; name 1 to 8"),
        ({"ranks": (0,), "steps": 0}, "profile.steps: 0 is not accepted; give 1 to 100"),
        ({"ranks": (0,), "steps": 101}, "profile.steps: 101 is not accepted; give 1 to 100"),
    ],
)
def test_a_profile_that_cannot_be_is_refused(fields: dict[str, object], says: str) -> None:
    story = running(2, processes_per_node=2)
    assert story.ask(InterventionAction.PROFILE, **fields).outcome == says
    assert not [each for each in story.effects if isinstance(each, TakeProfile)]
    forming = Story(nodes_max=2).join(1)
    assert forming.ask(InterventionAction.PROFILE, ranks=(0,)).outcome.startswith("no round runs")


def test_requests_that_come_at_the_wrong_time_say_so() -> None:
    forming = Story(nodes_max=2).join(1)
    assert forming.ask(InterventionAction.RESTART).outcome == "the job forms anew"
    assert forming.ask(InterventionAction.RESIZE, "i2", nodes=4).state is InterventionState.DONE
    assert forming.ask(InterventionAction.SKIP_BATCHES, "i3", skip_batches=2).outcome.startswith("no checkpoint")
    story = running(2, spares=1)
    story.ask(InterventionAction.PAUSE)
    assert story.ask(InterventionAction.PAUSE, "i2").outcome == "the job is suspended already"
    assert story.ask(InterventionAction.RESTART, "i6").outcome == "the job is suspended; resume it first"
    story.ask(InterventionAction.RESUME, "i3")
    assert story.ask(InterventionAction.EVICT, "i4", node="node-3").state is InterventionState.DONE
    assert story.ask(InterventionAction.EVICT, "i5", node="node-3").outcome == "node node-3 is avoided already"


def test_a_failed_job_comes_back_only_by_a_restart() -> None:
    story = running(1)
    for _ in range(6):
        story.die(1, cause="exit code 1").wait(400)
    assert story.state.phase is JobPhase.FAILED
    assert (
        "only Return, Resume, Restart, Rewind, SkipBatches are possible"
        in story.ask(InterventionAction.PAUSE).outcome
    )
    story.ask(InterventionAction.RESTART, "i2")
    assert story.round.entry is Entry.RESPAWN


def test_a_node_condemned_by_its_deaths_can_be_returned_after_the_job_failed() -> None:
    story = running(2, nodes_min=2, evictions=EvictionBudget(count=1, fraction=1.0))
    story.xid(1, 79).join(3).run(60).xid(2, 79)
    assert story.state.phase is JobPhase.FAILED
    assert story.ask(InterventionAction.RETURN, "i1", node="node-1").state is InterventionState.DONE
    assert story.state.avoided == ()


def test_a_round_of_reentrant_members_is_not_judged_by_its_processes() -> None:
    story = Story(nodes_max=2).join(1, 2)
    story.tell(MemberEntered("node-1", story.round.number, reentrant=False))
    assert story.state.phase is JobPhase.FORMING, "one of two is not all"
    story.tell(MemberEntered("node-2", story.round.number, reentrant=True))
    assert story.state.phase is JobPhase.FORMING
    story.run(1)
    story.tell(MemberEntered("node-1", story.round.number, reentrant=False))
    assert story.state.phase is JobPhase.RUNNING


def test_a_swap_for_a_worker_that_keeps_dying_says_how_often_it_did() -> None:
    story = running(2, spares=1).die(1).run(60).die(1).run(70).die(1)
    assert [order.node for order in story.state.avoided] == ["node-1"]
    assert story.round.reason.startswith("3 workers died by signal on node node-1")


def test_a_spare_that_leaves_and_a_node_without_a_member_are_no_news_to_the_round() -> None:
    story = running(2, spares=1)
    before = story.round
    story.leave(3).gone(9)
    assert story.round == before
    assert story.state.member("node-3") is None


def test_late_evidence_finds_its_incident_among_several() -> None:
    story = running(3)
    first = story.round.number
    story.die(1).die(2)
    story.find(FindingKind.COLLECTIVE_FAILED, 1, round=first, cause="peer closed")
    assert [len(each.evidence) for each in story.state.incidents] == [2, 1]


@pytest.mark.parametrize("kind", NODE_FAULTS)
def test_a_fault_of_a_node_that_is_not_named_calls_a_human_and_the_job_goes_on(kind: FindingKind) -> None:
    story = running(2, spares=1, restarts=RestartBudget(count=0))
    story.find(kind, 1, subject=Subject(JOB), asks=XidAction.EVICT, round=None)
    assert (story.incident.kind, story.incident.state) == (kind, IncidentState.PAGED)
    assert any(isinstance(each, Notify) for each in story.effects)
    assert (story.state.phase, story.state.avoided) == (JobPhase.RUNNING, ())


def failed(nodes: int) -> Story:
    story = running(nodes, nodes_min=nodes, restarts=RestartBudget(count=0)).die(1)
    assert story.state.phase is JobPhase.FAILED
    return story


def test_whose_pod_goes_after_the_job_failed_is_not_missed_once_it_is_restarted() -> None:
    story = failed(2)
    story.lose(2)
    assert list(story.state.missing) == ["node-2"]
    story.pod(2, PodState.GONE)
    assert story.state.missing == {}
    story.ask(InterventionAction.RESTART)
    story.join(2, boot="b")
    assert (sorted(story.members), story.state.missing) == (["node-1", "node-2"], {})


def test_a_failed_job_forgets_a_member_whose_pod_goes_first_and_heals_nothing() -> None:
    story = failed(2)
    count = story.state.incident_count
    story.pod(2, PodState.GONE)
    assert ("node-2" in story.state.members, story.state.missing) == (False, {})
    assert (story.state.phase, story.state.recovery, story.state.incident_count) == (JobPhase.FAILED, None, count)
    story.ask(InterventionAction.RESTART)
    assert not isinstance(story.state.desired, Round)


def test_a_failed_job_hears_that_a_node_is_gone() -> None:
    story = failed(2)
    story.gone(2)
    assert "node-2" not in story.state.members
    assert story.state.phase is JobPhase.FAILED
