"""Healing: each rung with what leads to it and what holds it back."""

import pytest
from story import JOB, Story, running

from holdfast.api.event import FindingMade, MemberEntered, RoundProgressed
from holdfast.api.finding import Confidence, FindingKind, Subject
from holdfast.api.incident import IncidentState, Rung
from holdfast.api.intervention import InterventionAction
from holdfast.api.policy import EvictionBudget, RestartBudget
from holdfast.api.round import Closed, Entry, Idle
from holdfast.api.status import JobPhase
from holdfast.watchdog.brain.step import Notify


def test_a_dead_worker_starts_anew_while_the_others_re_enter() -> None:
    story = running(3).die(2)
    assert story.round.entry is Entry.REENTER
    assert story.round.fresh_ranks == (1,)
    assert story.members == ["node-1", "node-2", "node-3"]
    assert story.incident.rung is Rung.RESPAWN
    assert story.round.restore.step == 40


def test_an_incident_recovers_with_the_first_new_step_and_counts_what_it_cost() -> None:
    story = running(3, step=47, commit=40).die(2)
    story.tell(MemberEntered("node-1", story.round.number, reentrant=True, last_step=52))
    story.run(41, restored=40)
    assert story.incident.state is IncidentState.RECOVERED
    assert story.incident.lost_steps == 12
    assert story.state.phase is JobPhase.RUNNING


def test_a_second_death_without_new_progress_starts_everybody_anew_after_a_back_off() -> None:
    story = running(3).die(2)
    story.die(2)
    assert isinstance(story.state.desired, Idle)
    story.wait(11)
    assert story.round.entry is Entry.RESPAWN


def test_a_crash_loop_ends_failed_with_the_last_error() -> None:
    story = running(2)
    for _ in range(6):
        if story.state.phase is JobPhase.FAILED:
            break
        story.die(1, cause="exit code 1", error="ValueError: bad shape").wait(400)
    assert story.state.phase is JobPhase.FAILED
    assert "bad shape" in story.state.reason
    assert story.incident.kind is FindingKind.CRASH_LOOP
    assert len([each for each in story.incident.evidence if each.source == "journal"]) == 4
    assert isinstance(story.state.desired, Closed)
    assert story.incident.state is IncidentState.PAGED
    assert any(isinstance(effect, Notify) for effect in story.effects)


def test_training_the_same_steps_again_is_no_progress() -> None:
    story = running(2, step=45, commit=40)
    for _ in range(8):
        if story.state.phase is JobPhase.FAILED:
            break
        story.die(1).wait(400)
        if story.state.phase is not JobPhase.FAILED:
            story.run(45, restored=40)
    assert story.state.phase is JobPhase.FAILED


def test_a_lost_node_is_replaced_by_the_spare_in_its_place() -> None:
    story = running(3, spares=1).lose(2)
    assert story.members == ["node-1", "node-4", "node-3"]
    assert story.incident.rung is Rung.SWAP


def test_without_a_spare_the_round_shrinks_and_survivors_keep_their_order() -> None:
    story = running(3).lose(1)
    assert story.members == ["node-2", "node-3"]
    assert story.incident.rung is Rung.SHRINK


def test_below_the_minimum_nothing_runs_until_a_replacement_comes() -> None:
    story = running(2, nodes_min=2).lose(1)
    assert isinstance(story.state.desired, Idle)
    assert story.state.phase is JobPhase.RECOVERING
    story.join(5)
    assert story.members == ["node-5", "node-2"]


def test_a_lost_spare_costs_nothing() -> None:
    story = running(2, spares=1)
    before = story.round
    story.lose(3)
    assert story.round == before
    assert story.state.incidents == ()


def test_a_whole_rack_lost_at_once_is_no_crash_loop() -> None:
    story = running(8, nodes_min=2)
    for node in range(1, 7):
        story.lose(node)
    first = story.round.number
    assert "node-1" not in story.members, "the first loss is healed at once"
    story.wait(0.3)
    assert story.members == ["node-7", "node-8"]
    assert story.round.number == first + 1, "the others take one round together"
    assert story.state.restart_count == 2
    assert len(story.state.open_incidents()) == 6
    story.run(51)
    assert not story.state.open_incidents()


def test_a_stopped_rank_starts_anew_and_a_hang_without_a_culprit_lets_all_re_enter() -> None:
    named = running(3).find(FindingKind.HANG, 3, cause="no progress")
    assert named.round.fresh_ranks == (2,)
    unnamed = running(3).find(FindingKind.HANG, 3, cause="no progress", confidence=Confidence.UNKNOWN)
    assert unnamed.round.fresh_ranks == ()
    assert unnamed.incident.rung is Rung.REENTER


def test_a_node_that_hangs_twice_within_the_hour_is_swapped_out() -> None:
    story = running(3, spares=1).find(FindingKind.HANG, 2, cause="no progress").run(60)
    story.find(FindingKind.HANG, 2, cause="no progress")
    assert story.members == ["node-1", "node-4", "node-3"]
    assert [order.node for order in story.state.avoided] == ["node-2"]


def test_xid_79_evicts_the_node_and_says_so_in_the_plan() -> None:
    story = running(3, spares=1).xid(2, 79)
    assert story.members == ["node-1", "node-4", "node-3"]
    assert story.state.plan is not None
    assert [order.node for order in story.state.plan.cordon] == ["node-2"]
    assert story.incident.kind is FindingKind.XID


def test_an_xid_that_the_job_file_ignores_changes_nothing() -> None:
    from holdfast.api.policy import XidAction

    story = running(2, xid_actions={79: XidAction.IGNORE})
    before = story.state
    story.xid(1, 79)
    assert story.state == before


def test_an_application_xid_on_two_nodes_exonerates_them_and_restarts_the_job() -> None:
    story = running(4, spares=2, evictions=EvictionBudget(fraction=1.0))
    story.xid(1, 31).run(60)
    assert [order.node for order in story.state.avoided] == ["node-1"]
    story.xid(2, 31)
    assert story.state.avoided == ()
    assert isinstance(story.state.desired, Idle), "an application fault backs off"
    story.wait(11)
    assert story.round.entry is Entry.RESPAWN
    assert story.state.returned == ("node-1",)


def test_a_gpu_off_the_bus_on_two_nodes_is_still_two_broken_gpus() -> None:
    story = running(4, spares=2, evictions=EvictionBudget(fraction=1.0))
    story.xid(1, 79).run(60).xid(2, 79)
    assert [order.node for order in story.state.avoided] == ["node-1", "node-2"]


def test_evictions_beyond_the_budget_page_instead() -> None:
    story = running(4, spares=4, evictions=EvictionBudget(count=2, fraction=1.0))
    story.xid(1, 79).run(60).xid(2, 79).run(70).xid(3, 79)
    assert story.state.phase is JobPhase.FAILED
    assert story.incident.rung is Rung.PAGE
    assert len(story.state.evictions) == 2


def test_a_node_that_is_gone_no_longer_counts_as_avoided() -> None:
    story = running(3, spares=2).xid(1, 79).run(60).gone(1)
    assert story.state.avoided == ()
    story.xid(2, 79)
    assert story.state.phase is not JobPhase.FAILED


def test_the_restart_budget_ends_in_a_page() -> None:
    story = running(2, restarts=RestartBudget(count=2))
    story.die(1).run(60).die(2).run(70).die(1)
    assert story.state.phase is JobPhase.FAILED


def test_a_judgement_of_an_older_round_joins_its_incident_and_changes_nothing() -> None:
    story = running(3).die(2)
    before = story.round
    story.die(2, round=before.number - 1, cause="exit code 1: peer closed")
    assert story.round == before
    assert len(story.state.incidents) == 1
    assert len(story.incident.evidence) == 2


def test_a_stronger_cause_on_the_same_node_takes_over_the_open_incident() -> None:
    story = running(3, spares=1).die(2).xid(2, 79).wait(0.3)
    assert len(story.state.incidents) == 1
    assert story.incident.kind is FindingKind.XID
    assert story.incident.note.startswith("first judged ProcessExit")
    assert story.members == ["node-1", "node-4", "node-3"]


def test_a_launcher_that_comes_back_as_another_process_is_a_lost_member() -> None:
    story = running(2).join(2, boot="b")
    assert story.incident.cause == "launcher restarted"
    assert story.round.number > 1


def test_a_reconnect_of_the_same_launcher_disturbs_nothing() -> None:
    story = running(2)
    before = story.round
    story.join(2, held=before.number)
    assert story.round == before


def test_after_its_own_restart_the_watchdog_waits_to_hear_before_it_re_forms() -> None:
    story = running(3).restart_watchdog()
    before = story.round
    story.join(1, held=before.number)
    story.die(1)
    assert isinstance(story.state.desired, Idle)
    story.join(2, held=before.number).lose(3)
    assert story.members == ["node-1", "node-2"]


def test_a_checkpoint_of_an_older_round_does_not_count() -> None:
    from holdfast.api.event import CheckpointRecorded

    story = running(2, commit=40).die(1)
    story.tell(CheckpointRecorded(story.round.number - 1, 45, "/ckpt"))
    assert story.state.checkpoints[-1].step == 40


def test_a_checkpoint_found_damaged_is_forgotten() -> None:
    story = running(2, step=55, commit=40).commit(50).die(1)
    assert story.round.restore.step == 50
    story.run(41, restored=40)
    assert [each.step for each in story.state.checkpoints] == [40]
    assert story.incident.lost_steps == 15


def test_no_event_in_any_phase_raises() -> None:
    from holdfast.api.event import Event
    from holdfast.watchdog.brain.table import MOVES, TRANSITIONS

    kinds = set(Event.__args__)  # type: ignore[attr-defined]
    assert kinds == set(MOVES)
    assert {kind for _, kind in TRANSITIONS} == kinds
    assert {phase for phase, _ in TRANSITIONS} == set(JobPhase) - {
        JobPhase.INVALID,
        JobPhase.STALLED,
    }  # these are only shown


def test_progress_of_an_older_round_does_not_end_an_incident() -> None:
    story = running(2).die(1)
    story.tell(RoundProgressed(story.round.number - 1, 60))
    assert story.incident.state is IncidentState.OPEN


def test_findings_before_the_job_is_submitted_are_ignored() -> None:
    from holdfast.api.finding import Finding, Subject
    from holdfast.watchdog.brain import advance, initial

    finding = Finding(FindingKind.XID, Subject("a/b", node="n"), "xid 79", (), Confidence.CERTAIN, 0.0, xid=79)
    step = advance(initial("a/b"), FindingMade(finding), 1.0)
    assert step.state == initial("a/b")


def test_a_member_that_had_gone_stays_gone_over_a_restart_of_the_watchdog() -> None:
    story = running(3, nodes_min=3).leave(2).restart_watchdog()
    story.join(1, held=1).join(3, held=1).join(4)
    assert story.members == ["node-1", "node-4", "node-3"]


def test_a_repeated_report_of_a_restore_or_a_commit_forgets_no_checkpoint() -> None:
    from holdfast.api.event import CheckpointRecorded, RestoreReported

    story = running(2, step=75, commit=40).commit(60)
    story.tell(RestoreReported(story.round.number, 0))
    story.tell(CheckpointRecorded(story.round.number, 40, "/ckpt"))
    assert [each.step for each in story.state.checkpoints] == [40, 60]


def test_the_reason_of_a_failed_job_is_one_line() -> None:
    story = running(1)
    for _ in range(6):
        story.die(1, cause="exit code 1", error="Traceback:\n  deep\nValueError: bad").wait(400)
    assert story.state.phase is JobPhase.FAILED
    assert "\n" not in story.state.reason
    assert story.state.reason.endswith("last error: ValueError: bad")


def test_a_committed_step_is_known_to_be_complete_before_any_report_says_so() -> None:
    story = running(2, step=55, commit=40).commit(60)
    assert story.state.step == 60
    story.die(1).run(61, restored=60)
    assert story.incident.lost_steps == 0


def test_all_incidents_that_one_round_heals_say_what_they_cost_together() -> None:
    story = running(4, step=500, commit=50).lose(1)
    story.now += 0.05
    story.lose(2).wait(1)
    story.run(51, restored=50)
    assert [each.lost_steps for each in story.state.incidents] == [450, 450]
    assert {each.recovered_round for each in story.state.incidents} == {story.round.number}
    assert [each.state for each in story.state.incidents] == [IncidentState.RECOVERED] * 2


def test_the_round_that_stepped_recovered_what_the_one_before_it_was_formed_for() -> None:
    story = Story(nodes_max=2).join(1, 2)
    story.die(1).wait(15)
    formed_for_it = story.round.number
    story.ask(InterventionAction.RESTART)
    story.wait(15).run(1, restored=None)
    assert story.round.number > formed_for_it
    assert story.incident.recovered_at is not None
    assert story.incident.recovered_round == story.round.number
    assert story.incident.lost_steps is None  # nobody knows of a step before the fault


def test_steps_lost_once_are_not_lost_again_with_every_later_round() -> None:
    story = running(2, spares=1, step=500, commit=50)
    story.ask(InterventionAction.REWIND, to_step=50)
    story.run(51, restored=50).run_on(60)
    before = story.state.ledger
    story.drain(2).save(60)
    story.now += 1.0
    story.run(61, restored=60)
    assert story.state.fault_step is None
    assert story.state.ledger.useful_s >= before.useful_s


@pytest.mark.parametrize("nodes", [1, 2])
def test_three_kills_within_an_hour_do_not_evict_a_node_that_the_job_cannot_train_without(nodes: int) -> None:
    story = running(nodes, nodes_min=nodes)
    guards: list[str] = []
    for kill in range(1, 6):
        story.die(1, cause="signal 9 (SIGKILL)")
        assert story.last is not None
        guards += story.last.reason.guards
        story.run(100 * kill).wait(60)
    assert story.state.phase is JobPhase.RUNNING
    assert (story.state.avoided, story.state.evictions) == ((), ())
    assert "no legal round without node-1" in guards
    told = [effect for effect in story.effects if isinstance(effect, Notify)]
    assert "3 workers died by signal on node node-1 within an hour" in told[0].text
    assert "nothing can take its place, so it stays" in told[0].text
    paged = [each for each in story.state.incidents if Rung.PAGE in [action.rung for action in each.actions]]
    assert [each.id for each in paged] == [each.incident for each in told]


def test_a_node_that_hangs_again_stays_while_the_job_cannot_train_without_it() -> None:
    story = running(1)
    for hang in range(1, 4):
        story.find(FindingKind.HANG, 1, cause="did not reach the collective").run(100 * hang).wait(60)
    assert story.state.phase is JobPhase.RUNNING
    assert story.state.avoided == ()


def test_a_node_that_is_lost_again_and_again_is_waited_for_while_nothing_can_take_its_place() -> None:
    story = running(1)
    for boot in "bcdef":
        story.lose(1).join(1, boot=boot).wait(40).run(100 * ord(boot))
    assert story.state.phase is JobPhase.RUNNING
    assert story.state.avoided == ()


def test_a_broken_node_leaves_also_when_it_was_the_only_one_and_the_wait_says_for_what() -> None:
    story = running(1).xid(1, 79)
    assert [order.node for order in story.state.avoided] == ["node-1"]
    assert story.state.phase is JobPhase.PENDING
    assert story.state.reason.startswith("0 of 1 members joined; node node-1 gets no ranks (xid 79")
    assert any(isinstance(effect, Notify) for effect in story.effects)


@pytest.mark.parametrize(
    ("reentrant", "others", "all_of_them"),
    [
        (True, "the others re-enter", "all re-enter"),
        (False, "the others start anew with it", "all workers start anew"),
    ],
)
def test_what_becomes_of_the_others_is_said_as_it_is(reentrant: bool, others: str, all_of_them: str) -> None:
    def trained() -> Story:
        return Story(nodes_max=2).join(1, 2).run(reentrant=reentrant)

    assert others in trained().die(1).incident.actions[0].reason
    assert others in trained().raise_in_script(1).incident.actions[0].reason
    assert others in trained().find(FindingKind.HANG, 1).incident.actions[0].reason
    hangs = trained().find(FindingKind.HANG, 1, confidence=Confidence.UNKNOWN)
    assert all_of_them in hangs.incident.actions[0].reason


def test_a_node_is_not_evicted_for_deaths_that_others_died_with_it() -> None:
    story = running(3, spares=1)
    for at in range(4):
        others = (Subject(JOB, node="node-3", member="node-3", rank=2),)
        story.die(2, also=others).wait(400)
        assert set(story.round.fresh_ranks) <= {1, 2}
        story.run(60 + at)
    assert story.state.avoided == ()
    assert {each.node for each in story.state.suspicions} == {"node-2", "node-3"}
