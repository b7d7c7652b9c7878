"""Planned changes gone wrong: each test tells one night that an on-call engineer would have had."""

import msgspec
import pytest
from forgetful_store import MemoryStore
from story import JOB, Story, policy, running

from holdfast.api.errors import Unavailable
from holdfast.api.event import (
    CheckpointRecorded,
    ClockTicked,
    InterventionRequested,
    JobSubmitted,
    Journaled,
    MemberDeparting,
    MemberEntered,
    MemberJoined,
    NodeChanged,
    RoundProgressed,
)
from holdfast.api.intervention import InterventionAction, InterventionRequest, InterventionState
from holdfast.api.plan import NodeState, PodState
from holdfast.api.policy import RestartBudget
from holdfast.api.status import JobPhase
from holdfast.watchdog import brain
from holdfast.watchdog.brain import advance, initial, next_wakeup
from holdfast.watchdog.brain.departures import gives_up_at
from holdfast.watchdog.brain.step import Answered
from holdfast.watchdog.detectors.detector import Connected, Disconnected, Heard
from holdfast.watchdog.job import Job
from holdfast.watchdog.senses import senses_for

PAGES_AT_ONCE = RestartBudget(count=0)


def checkpoint(story: Story, id: str = "c1") -> None:
    story.tell(InterventionRequested(InterventionRequest(id, JOB, InterventionAction.CHECKPOINT, "asked")))


def answers(story: Story) -> list[tuple[str, InterventionState]]:
    effects = [each for each in story.effects if isinstance(each, Answered)]
    return [(each.outcome.id, each.outcome.state) for each in effects]


# Pods of a healthy job.


def test_the_first_that_comes_back_after_an_outage_does_not_release_the_others() -> None:
    """The watchdog's network was away for a minute: nobody was there, so nobody was away while others were."""
    story = running(3, nodes_min=3).lose(1).lose(2).lose(3).wait(60)
    assert story.plan.release == ()
    story.join(3)
    assert story.plan.release == ()
    story.wait(31)
    assert story.plan.release == ("node-1", "node-2")


def test_the_time_the_watchdog_was_away_counts_against_nobody() -> None:
    """A leader whose network fails loses some, then its lease; the next leader is there 40 s later."""
    story = running(3, nodes_min=3).lose(1).lose(2)
    story.now += 40
    story.restart_watchdog().join(3)
    assert story.plan.release == ()


def test_a_control_plane_that_is_cut_off_from_every_node_releases_nobody() -> None:
    story = running(3)
    for number in (1, 2, 3):
        story.lose(number)
    for number in (1, 2, 3):
        story.node(number, NodeState.NOT_READY, "kubelet stopped posting")
    assert story.plan.release == ()


def test_a_launcher_that_started_again_in_its_place_is_not_the_one_that_was_told_to_end() -> None:
    story = running(2, nodes_min=2).told_to_end(2).wait(26).leave(2).join(2, boot="b")
    assert story.members == ["node-1", "node-2"]
    assert story.state.departures == ()


def test_one_loss_that_is_seen_twice_is_one_strike() -> None:
    """A pod deleted by force is gone in the API first; its launcher's connection breaks later."""
    story = running(2, nodes_min=2).pod(1, PodState.GONE, "the pod was deleted").lose(1)
    assert len(story.state.suspicions) == 1
    story.join(3)
    assert story.state.restart_count == 1


@pytest.mark.parametrize("ends", ["leave", "lose"])
def test_a_pod_that_is_gone_is_not_released_for_ever(ends: str) -> None:
    story = running(2, nodes_min=2).pod(1, PodState.GONE, "the pod was deleted")
    _ = story.leave(1) if ends == "leave" else story.lose(1)
    story.join(3).run(60, restored=40).wait(100)
    assert story.plan.release == ()


# Interventions: answered once, always.


def test_a_checkpoint_that_does_not_come_before_a_move_is_answered() -> None:
    story = running(2, spares=1).drain(1)
    checkpoint(story)
    story.wait(61)
    assert set(story.members) == {"node-2", "node-3"}
    assert answers(story) == [("c1", InterventionState.REFUSED)]


def test_a_checkpoint_that_does_not_come_before_a_suspension_is_answered() -> None:
    story = running(2).resubmit(suspend=True, generation=1)
    checkpoint(story)
    story.wait(61)
    assert story.state.phase is JobPhase.SUSPENDED
    assert answers(story) == [("c1", InterventionState.REFUSED)]


def test_a_checkpoint_asked_of_a_job_that_fails_is_answered() -> None:
    story = running(2, restarts=PAGES_AT_ONCE)
    checkpoint(story)
    story.die(1)
    assert story.state.phase is JobPhase.FAILED
    assert answers(story) == [("c1", InterventionState.REFUSED)]


def test_a_checkpoint_asked_of_a_job_that_another_one_replaces_is_answered() -> None:
    story = running(2, uid="a")
    checkpoint(story)
    story.resubmit(uid="b")
    assert answers(story) == [("c1", InterventionState.REFUSED)]


def test_what_was_answered_for_the_job_before_is_not_done_to_the_next_of_its_name() -> None:
    story = running(2, uid="a")
    story.ask(InterventionAction.PAUSE, "p1")
    story.resubmit(uid="b")
    story.tell(InterventionRequested(InterventionRequest("p1", JOB, InterventionAction.PAUSE, "asked")))
    assert not story.state.paused


def test_a_request_that_a_regular_commit_serves_by_growing_is_not_refused() -> None:
    story = running(3).lose(3).run(51, restored=40).join(4)
    checkpoint(story)
    story.commit(60)
    assert ("c1", InterventionState.REFUSED) not in answers(story)


# A job that is held and has failed.


def test_a_job_that_failed_while_it_was_being_paused_can_be_brought_back() -> None:
    story = running(2, restarts=PAGES_AT_ONCE)
    story.ask(InterventionAction.PAUSE, "p")
    story.die(1)
    assert story.state.phase is JobPhase.FAILED
    done = {story.ask(each, each.value).state for each in (InterventionAction.RESUME, InterventionAction.RESTART)}
    assert InterventionState.DONE in done


def test_a_job_that_failed_while_its_spec_suspended_it_can_be_brought_back() -> None:
    story = running(2, restarts=PAGES_AT_ONCE).resubmit(suspend=True, generation=2).die(1)
    assert story.state.phase is JobPhase.FAILED
    story.resubmit(suspend=False, generation=3)
    assert story.ask(InterventionAction.RESTART).state is InterventionState.DONE


def test_a_launcher_that_starts_again_harms_no_paused_job() -> None:
    story = running(2, restarts=PAGES_AT_ONCE)
    story.ask(InterventionAction.PAUSE)
    story.save(60).join(1, boot="b")
    assert story.state.phase is JobPhase.SUSPENDED
    assert story.state.incidents == ()


# Moves that never end.


def test_a_drain_that_was_stuck_ends_once_the_job_may_shrink() -> None:
    story = running(3, nodes_min=2).drain(1).drain(2).wait(400)
    story.node(2, NodeState.READY).wait(400)
    assert "node-1" not in story.members


def test_a_drain_whose_time_ran_out_while_the_watchdog_was_away_ends() -> None:
    story = running(3, nodes_min=1).drain(1)
    story.now += 400
    story.restart_watchdog().join(1, 2, 3).wait(400)
    assert "node-1" not in story.members


def test_one_spare_takes_over_one_of_two_drained_nodes() -> None:
    story = running(3, spares=1, nodes_min=3).drain(1).drain(2)
    for step in range(60, 70):
        if story.wanted:
            story.save(step)
        story.wait(61)
    assert "node-4" in story.members


# Steps lost by a move that was planned.


def test_an_old_checkpoint_is_not_taken_for_the_one_before_a_move() -> None:
    story = running(2, nodes_min=2).drain(1).wait(241).save(70).wait(50).run_on(500).join(3)
    assert len(story.wanted) == 2, "430 steps were made since the last one"


def test_a_suspension_does_not_make_do_with_a_checkpoint_asked_for_earlier() -> None:
    story = running(2, nodes_min=2).drain(1).wait(241).save(70).wait(50).run_on(500)
    story.resubmit(suspend=True, generation=2)
    assert story.state.phase is JobPhase.RUNNING
    assert len(story.wanted) == 2


def test_a_request_that_failed_leaves_time_for_the_save_before_a_node_goes() -> None:
    story = running(2, nodes_min=2).drain(1).wait(200)
    checkpoint(story)
    story.wait(60)  # until a second before the request is given up
    story.now += 1
    story.tell(ClockTicked())
    assert answers(story) == [("c1", InterventionState.REFUSED)]
    assert len(story.wanted) == 2


def test_a_pod_with_a_long_grace_period_has_all_of_it() -> None:
    """The operator sees the deletion and knows no grace period; the launcher knows its own."""
    story = running(2, spares=1).pod(2, PodState.LEAVING, "evicted").told_to_end(2, within_s=115)
    assert story.state.departures[0].until == story.now + 115
    assert story.state.saving is not None
    assert gives_up_at(story.state) == story.now + 60


# What is said again.


def test_a_drain_that_is_told_again_asks_for_no_further_checkpoint() -> None:
    story = running(2, nodes_min=2).drain(1).wait(301)
    for _ in range(5):
        story.drain(1).wait(301)  # the operator reconnected
    assert len(story.wanted) == 1


def test_how_a_pod_ended_is_evidence_once() -> None:
    story = running(2, nodes_min=2).lose(1).pod(1, PodState.GONE, "OOMKilled")
    known = len(story.incident.evidence)
    for _ in range(5):
        story.pod(1, PodState.GONE, "OOMKilled")
    assert len(story.incident.evidence) == known


def test_a_node_that_drained_before_the_job_was_submitted_has_its_time() -> None:
    story = Story.__new__(Story)
    story.now, story.state, story.effects, story.last = 1000.0, initial(JOB), [], None
    story.drain(1).tell(JobSubmitted(policy(nodes_max=2)))
    story.join(1, 2).run(40).commit(40).wait(10)
    assert len(story.wanted) == 0
    assert story.state.departures[0].until >= 1300


def test_why_a_pod_waited_is_not_told_once_it_runs() -> None:
    story = Story(nodes_max=2).join(1).pod(2, PodState.PENDING, "Unschedulable").pod(2, PodState.RUNNING)
    assert "Unschedulable" not in story.state.reason


def test_nodes_that_were_left_long_ago_are_forgotten() -> None:
    """The operator speaks of a node no more once no pod is there: nothing but the brain can forget it."""
    story = running(2, spares=1)
    for number in range(500):
        story.tell(NodeChanged(f"old-{number}", NodeState.DRAINING, "upgrade"))
    story.wait(2000)
    assert len(story.state.departures) < 100


# The journal.


@pytest.mark.parametrize("held", ["waiting", "paused"])
def test_a_lost_member_does_not_keep_the_brain_awake(held: str) -> None:
    story = running(2, nodes_min=2)
    if held == "paused":
        story.ask(InterventionAction.PAUSE)
        story.save(60)
    story.lose(1).wait(120)
    at = next_wakeup(story.state)
    assert at is None or at > story.now or advance(story.state, ClockTicked(), story.now).state != story.state


class Night:
    """One job of two with everything that watches it, and its journal."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.job = Job(JOB, store=self.store, fence=self.store.claim(), brain=brain, senses_for=senses_for)
        self.now = 1000.0
        self.job.demand(JobSubmitted(policy(nodes_min=2, nodes_max=2)), self.now)
        for name in ("node-1", "node-2"):
            self.job.observe(Connected(name, name), self.now)
            self.job.record(MemberJoined(name, name, "a", "10.0.0.1", 1, (7000, 7001), warm=True), self.now)
        assert self.job.state.round is not None
        number = self.job.state.round.number
        for name in ("node-1", "node-2"):
            self.job.record(MemberEntered(name, number, reentrant=True), self.now)
        self.job.record(RoundProgressed(number, 1), self.now)
        self.job.record(CheckpointRecorded(number, 1, "/ckpt"), self.now)

    def pass_time(self, seconds: float) -> None:
        """node-2 beats every second, and the job is woken whenever it asks."""
        end, beat = self.now + seconds, self.now
        while self.now < end:
            wakeup = self.job.next_wakeup(self.now)
            self.now = max(self.now, min(beat + 1, wakeup if wakeup is not None else end))
            if self.now >= beat + 1:
                beat += 1
                self.job.observe(Heard("node-2"), self.now)
            if wakeup is not None and wakeup <= self.now:
                self.job.elapse(self.now)


def test_an_hour_of_waiting_for_a_pod_is_not_an_hour_of_journal() -> None:
    night = Night()
    night.job.observe(Disconnected("node-1"), night.now)
    before = night.job.offset
    night.pass_time(3600)
    assert night.job.offset - before < 60


class Refusing(MemoryStore):
    """Takes nothing while `away`."""

    away = False

    def append(self, job, events, *, at, after, fence) -> tuple[Journaled, ...]:  # type: ignore[no-untyped-def]
        if self.away:
            raise Unavailable("the store is away")
        return super().append(job, events, at=at, after=after, fence=fence)


def test_what_the_operator_repeats_during_an_outage_pushes_no_other_fact_out() -> None:
    store = Refusing()
    job = Job(JOB, store=store, fence=store.claim(), brain=brain, senses_for=senses_for)
    job.demand(JobSubmitted(policy(nodes_max=2)), 1000.0)
    job.record(MemberJoined("node-1", "node-1", "a", "10.0.0.1", 1, (7000, 7001), warm=True), 1000.0)
    store.away = True
    job.record(MemberDeparting("node-1", "SIGTERM", 25.0), 1000.0)
    for _ in range(6):  # reconnects of the operator of 12,500 nodes
        for number in range(12_500):
            job.record(NodeChanged(f"n{number}", NodeState.READY), 1000.1)
    store.away = False
    job.elapse(1010.0)
    assert [each.member for each in job.state.departures] == ["node-1"]


def test_a_request_that_is_asked_about_again_leaves_no_line_behind_when_the_job_is_over() -> None:
    """Polled every two seconds for as long as the object is there."""
    story = running(2, restarts=PAGES_AT_ONCE)
    checkpoint(story)
    story.die(1)
    checkpoint(story)
    assert "c1" in story.state.answered


def test_the_first_policy_said_again_does_not_undo_a_resize() -> None:
    story = running(2, generation=1)
    first = story.state.policy
    assert first is not None
    story.ask(InterventionAction.RESIZE, nodes=4)
    story.tell(JobSubmitted(first))
    assert story.plan.members == 4


def test_a_policy_of_nobody_does_not_end_a_job_that_has_an_owner() -> None:
    story = running(2, uid="a")
    assert story.state.policy is not None
    story.tell(JobSubmitted(msgspec.structs.replace(story.state.policy, uid="")))
    assert story.state.phase is JobPhase.RUNNING


def test_a_spare_that_comes_back_after_the_change_of_leader_takes_the_ranks_of_a_node_that_died_with_it() -> None:
    story = running(2, spares=1, nodes_min=1).restart_watchdog()
    assert story.state.member("node-3") is not None, "it has not been heard of yet, which is not lost"
    story.join(2).join(3).lose(1)
    assert set(story.members) == {"node-2", "node-3"}
