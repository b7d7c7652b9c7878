"""A mistake that a script's start shows ends the job at once, and a node that cannot load the script leaves it."""

from story import JOB, Story, running

from holdfast.api.finding import FindingKind, Subject
from holdfast.api.incident import IncidentState, Rung
from holdfast.api.intervention import InterventionAction
from holdfast.api.policy import XidAction
from holdfast.api.status import JobPhase
from holdfast.watchdog.detectors.process_exit import LOADS_NOT

MISSING = "ModuleNotFoundError: No module named 'flash_attn' (train.py:3)"
FIX = "install the module"


def mistaken(story: Story, node: int = 1, **fields: object) -> Story:
    """Every rank ended with the mistake before any sign of training."""
    given = {"subject": Subject(JOB, rank=0), "cause": MISSING, "alike": "ModuleNotFoundError", "fix": FIX}
    return story.find(FindingKind.USER_CODE, node, **{**given, **fields})


def begun(nodes: int, spares: int = 0) -> Story:
    """Members have joined and their workers run, without a step."""
    story = Story(nodes_max=nodes, spares=spares)
    return story.join(*range(1, nodes + spares + 1)).run(reentrant=False)


def test_a_mistake_of_all_ranks_is_tried_once_and_the_reason_says_what_mends_it() -> None:
    story = mistaken(begun(2))
    assert story.state.phase is JobPhase.FAILED
    assert story.state.restart_count == 0
    assert (story.incident.state, story.incident.rung) == (IncidentState.PAGED, Rung.PAGE)
    for words in (MISSING, FIX, "restart the job"):
        assert words in story.state.reason
    assert (story.state.avoided, story.state.suspicions) == ((), ())


def test_on_the_only_node_it_is_tried_once_as_well() -> None:
    assert mistaken(begun(1)).state.phase is JobPhase.FAILED


def test_while_another_node_waits_one_node_alone_is_no_proof() -> None:
    story = mistaken(begun(1, spares=1))
    assert story.state.phase is not JobPhase.FAILED
    mistaken(story.run(reentrant=False))
    assert story.state.phase is JobPhase.FAILED
    assert story.state.restart_count == 1


def test_after_a_heal_of_a_job_that_has_trained_it_is_tried_once_more() -> None:
    story = running(2).die(1).wait(11).run(reentrant=False)
    mistaken(story)
    assert story.state.phase is not JobPhase.FAILED
    assert "once more" in story.state.reason
    mistaken(story.wait(60).run(reentrant=False))
    assert story.state.phase is JobPhase.FAILED
    assert FIX in story.state.reason


def test_a_script_that_publishes_nothing_has_trained_once_it_showed_a_sign() -> None:
    story = begun(2).show_sign().die(1).wait(11).run(reentrant=False)
    assert mistaken(story).state.phase is not JobPhase.FAILED
    story.wait(60).run(reentrant=False)
    assert story.state.phase is not JobPhase.FAILED, "it came back"


def test_after_a_restart_on_request_the_script_may_be_another_one() -> None:
    story = running(2)
    story.ask(InterventionAction.RESTART)
    story.run(reentrant=False)
    assert mistaken(story).state.phase is JobPhase.FAILED


def test_a_node_that_cannot_load_what_others_load_leaves_the_second_time() -> None:
    story = begun(2, spares=1).die(2, cause=LOADS_NOT)
    assert (story.incident.rung, story.state.avoided) == (Rung.RESPAWN, ())
    story.wait(11).run(reentrant=False)
    story.die(2, cause=LOADS_NOT)
    assert [order.node for order in story.state.avoided] == ["node-2"]
    assert story.state.phase is not JobPhase.FAILED


def test_what_rank_0_alone_loads_in_vain_evicts_no_node_before_it_ever_trained() -> None:
    story = begun(2, spares=1)
    for _ in range(4):
        story.die(1, cause=LOADS_NOT).wait(100)
        if story.state.phase is not JobPhase.FAILED:
            story.run(reentrant=False)
    assert story.state.phase is JobPhase.FAILED
    assert story.state.avoided == ()
    trained = running(2, spares=1).die(1, cause=LOADS_NOT).wait(11).run(reentrant=False)
    trained.die(1, cause=LOADS_NOT)
    assert [order.node for order in trained.state.avoided] == ["node-1"], "it could load it before"


def test_a_fault_that_is_on_another_node_too_evicts_neither() -> None:
    story = begun(2, spares=1).die(2, cause=LOADS_NOT).wait(11).run(reentrant=False)
    story.die(1, cause=LOADS_NOT).wait(21).run(reentrant=False)
    assert story.state.avoided == ()


def test_processes_that_a_script_spawns_itself_are_told_of_and_training_goes_on() -> None:
    story = running(2)
    before = story.round.number
    cause = "the script starts processes of its own (torch.multiprocessing.spawn at train.py:30)"
    story.find(FindingKind.USER_CODE, 1, subject=Subject(JOB, rank=0), cause=cause, fix=FIX, asks=XidAction.WATCH)
    assert (story.incident.state, story.incident.rung) == (IncidentState.PAGED, Rung.PAGE)
    assert (story.state.phase, story.round.number) == (JobPhase.RUNNING, before)


def test_the_only_node_is_never_evicted_however_often_its_workers_are_killed() -> None:
    story = running(1)
    for kill in range(3):
        story.die(1).wait(301)
        story.run(60 + 10 * kill)
    assert [incident.kind for incident in story.state.incidents] == [FindingKind.PROCESS_EXIT] * 3
    assert story.state.avoided == ()
    assert story.state.phase is JobPhase.RUNNING
    assert any("nothing can take its place" in each.reason for each in story.incident.actions)
