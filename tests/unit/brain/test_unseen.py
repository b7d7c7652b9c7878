"""Scripts that publish no steps, and failures that are the script's own."""

import pytest
from story import JOB, Story, running

from holdfast.api.event import MemberEntered, RestoreReported, RoundBegan, RoundProgressed
from holdfast.api.finding import Confidence, FindingKind, Subject
from holdfast.api.incident import IncidentState, Rung
from holdfast.api.round import Closed, Entry, Idle, Round
from holdfast.api.status import JobPhase
from holdfast.watchdog.brain.history import SILENT_STEADY_S, STEADY_S
from holdfast.watchdog.brain.status import status_of
from holdfast.watchdog.detectors.user_code import ALIKE as EARLY_EXIT

ALIKE = "KeyError in train.py:7"


def unseen() -> Story:
    return Story(nodes_max=2).join(1, 2).run(reentrant=False)


def test_workers_that_run_again_are_recovered_once_they_ran_steadily_and_no_figure_is_told() -> None:
    story = unseen().die(1).run(reentrant=False)
    assert story.state.phase is JobPhase.RUNNING
    story.wait(60)
    assert story.incident.state is IncidentState.OPEN, "it may still import"
    story.show_sign().wait(STEADY_S - 1)
    assert story.incident.state is IncidentState.OPEN
    story.wait(2)
    assert story.incident.state is IncidentState.RECOVERED
    assert story.incident.timeline[-1].what.startswith("workers run again in round 3")
    assert story.incident.time_to_recover_s is None
    assert story.incident.lost_steps is None
    assert status_of(story.state, None, story.now).ettr is None


def test_workers_that_show_no_sign_are_given_twice_the_longest_imports() -> None:
    story = unseen().die(1).run(reentrant=False).wait(SILENT_STEADY_S - 2)
    assert story.incident.state is IncidentState.OPEN
    story.wait(3)
    assert story.incident.state is IncidentState.RECOVERED


def test_only_the_first_sign_of_the_newest_round_counts() -> None:
    story = unseen().show_sign()
    at = story.state.signed_at
    story.now += 5
    story.show_sign(2)
    assert story.state.signed_at == at
    story.die(1)
    story.tell(RoundBegan("node-1", story.round.number - 1))
    assert story.state.signed_at is None


def test_a_second_fault_within_a_minute_is_no_crash_loop_when_the_workers_trained_in_between() -> None:
    story = unseen().wait(40).show_sign().wait(STEADY_S + 1)
    story.die(1).run(reentrant=False)
    story.wait(30).show_sign().wait(STEADY_S + 1)
    story.die(2)
    assert isinstance(story.state.desired, Round), "no back-off"
    assert story.round.entry is Entry.REENTER
    assert story.state.restart_count == 2
    story.run(reentrant=False).wait(30).show_sign().wait(STEADY_S - 1).die(1)
    assert isinstance(story.state.desired, Idle), "it had trained for less than that"


def test_the_same_exception_again_and_again_ends_the_job_however_long_each_run_lasts() -> None:
    story = unseen()
    for _ in range(6):
        if story.state.phase is JobPhase.FAILED:
            break
        story.show_sign().wait(STEADY_S + 1).raise_in_script(1).wait(400)
        if isinstance(story.state.desired, Round):
            story.run(reentrant=False)
    assert story.state.phase is JobPhase.FAILED
    assert (story.incident.kind, story.incident.state) == (FindingKind.USER_CODE, IncidentState.PAGED)
    assert story.incident.culprit.node is None


@pytest.mark.parametrize(
    ("kind", "cause", "alike"),
    [
        (FindingKind.USER_CODE, "exit code 1", "exit code 1"),
        (FindingKind.USER_CODE, "exit code 0 before Run.enter had returned", ""),
        (FindingKind.USER_CODE, "rank 0 ended with exit code 0 while others went on", EARLY_EXIT),
        (FindingKind.PROCESS_EXIT, "exit code 0 after signal 15 (SIGTERM)", ""),
    ],
)
def test_a_script_that_ends_without_an_exception_days_apart_goes_on_each_time(
    kind: FindingKind, cause: str, alike: str
) -> None:
    story = unseen()
    for _ in range(6):
        story.show_sign().wait(STEADY_S + 1)
        story.find(kind, 1, subject=Subject(JOB, rank=0), cause=cause, alike=alike)
        assert isinstance(story.state.desired, Round), "no back-off, and no end"
        story.run(reentrant=False).wait(86_400)
    assert story.state.phase is JobPhase.RUNNING


def test_a_script_that_publishes_steps_is_recovered_by_a_step_and_by_nothing_else() -> None:
    story = running(2).die(1).die(1).wait(11)
    assert story.round.entry is Entry.RESPAWN
    number = story.round.number
    for share in story.round.ranks:  # not attached within the grace: torch was still being imported
        story.tell(MemberEntered(share.member, number, reentrant=False))
    story.tell(RoundBegan("node-1", number))
    story.wait(10 * SILENT_STEADY_S)
    assert story.incident.state is IncidentState.OPEN
    assert story.state.phase is JobPhase.RECOVERING
    story.tell(RestoreReported(number, 40))
    assert story.incident.state is IncidentState.OPEN
    story.tell(RoundProgressed(number, 41))
    assert story.incident.state is IncidentState.RECOVERED
    assert story.incident.time_to_recover_s is not None
    assert story.incident.lost_steps == 10


def test_a_script_that_attaches_late_for_the_first_time_goes_on_by_its_steps() -> None:
    story = unseen().die(1).run(reentrant=False)
    number = story.round.number
    story.tell(MemberEntered("node-1", number, reentrant=True))
    story.wait(10 * SILENT_STEADY_S)
    assert story.incident.state is IncidentState.OPEN, "it has begun to tell of itself"
    story.tell(RoundProgressed(number, 3))
    assert story.incident.state is IncidentState.RECOVERED
    assert story.incident.recovered_at == story.now


def test_what_the_script_raised_blames_no_node_and_keeps_its_traceback() -> None:
    story = running(3).raise_in_script(2)
    assert story.incident.kind is FindingKind.USER_CODE
    assert story.incident.culprit.node is None
    assert story.incident.error.startswith("Traceback")
    assert story.incident.rung is Rung.RESPAWN
    assert story.round.fresh_ranks == (1,)
    assert story.state.suspicions == ()
    assert story.state.avoided == ()


def test_a_victim_heard_of_first_becomes_what_the_script_raised() -> None:
    story = running(3)
    before = story.round.number
    story.die(1, cause="exit code 1: Connection closed by peer", confidence=Confidence.UNKNOWN)
    assert story.incident.culprit.node == "node-1"
    story.raise_in_script(2, alike="")
    story.find(FindingKind.USER_CODE, 2, round=before, subject=story.incident.culprit)
    assert len(story.state.incidents) == 2, "the newest round has its own"
    first = story.state.incidents[0]
    assert first.kind is FindingKind.USER_CODE


def test_what_fails_alike_on_every_rank_before_it_trains_is_tried_once_more_and_ends_at_once() -> None:
    story = Story(nodes_max=2).join(1, 2).raise_in_script(1, alike=ALIKE).wait(1)
    assert isinstance(story.state.desired, Round), "no back-off"
    assert story.round.entry is Entry.RESPAWN
    before = story.now
    story.raise_in_script(2, alike=ALIKE)
    assert story.now == before
    assert isinstance(story.state.desired, Closed)
    assert story.state.phase is JobPhase.FAILED
    says = "the script failed in one way twice, without a new step in between: KeyError: 'x' (train.py:7)"
    assert says in story.state.reason
    assert story.incident.kind is FindingKind.USER_CODE
    assert story.incident.state is IncidentState.PAGED


def test_another_failure_alike_and_one_after_a_step_are_not_the_second_time() -> None:
    story = Story(nodes_max=2).join(1, 2).raise_in_script(1, alike=ALIKE).wait(1)
    story.raise_in_script(1, alike="ImportError in data.py:1")
    assert story.state.phase is not JobPhase.FAILED
    story = Story(nodes_max=2).join(1, 2).raise_in_script(1, alike=ALIKE).wait(1).run(5)
    story.raise_in_script(1, alike=ALIKE)
    assert story.state.phase is not JobPhase.FAILED


def test_exit_code_2_ends_the_job_only_when_every_rank_did_so_before_it_trained() -> None:
    cause = "exit code 2: train.py: error: no such option"
    story = (
        Story(nodes_max=1)
        .join(1)
        .die(1, cause=cause, alike="exit code 2")
        .die(1, cause=cause, alike="exit code 2")
    )
    assert story.state.phase is JobPhase.FAILED
    assert "no such option" in story.state.reason
    trained = unseen().show_sign().wait(20).die(1, cause="exit code 2").run(reentrant=False)
    assert trained.state.phase is JobPhase.RUNNING


@pytest.mark.parametrize("alike", ["", ALIKE])
def test_one_failure_of_the_script_is_one_incident_however_many_ranks_tell_of_it(alike: str) -> None:
    story = running(3).raise_in_script(2, alike=alike).raise_in_script(1, alike=alike)
    story.find(FindingKind.PROCESS_EXIT, 3, subject=Subject(JOB, rank=2), cause="exit code 1: OSError")
    (incident,) = story.state.incidents
    assert (incident.kind, incident.culprit.node) == (FindingKind.USER_CODE, None)


def test_a_rank_that_ends_early_is_tried_once_more_with_all_and_ends_the_job_the_second_time() -> None:
    cause = "rank 0 ended with exit code 0 while others went on"
    story = running(3).raise_in_script(1, cause, alike=EARLY_EXIT)
    assert story.round.entry is Entry.RESPAWN
    story.run(1).raise_in_script(1, cause, alike=EARLY_EXIT)
    assert story.state.phase is JobPhase.FAILED
    assert f"the script failed in one way twice, without a new step in between: {cause}" in story.state.reason
    assert story.state.avoided == ()
    assert story.state.suspicions == ()


def test_a_step_that_was_complete_before_the_failure_and_told_late_is_no_progress() -> None:
    story = running(1, step=50).raise_in_script(1, alike=ALIKE)
    story.tell(MemberEntered("node-1", story.round.number, reentrant=True, last_step=53))
    story.tell(RoundProgressed(story.round.number, 53))
    assert story.state.failures != ()
    story.raise_in_script(1, alike=ALIKE)
    assert story.state.phase is JobPhase.FAILED
