"""Stops that are the script's own: they cost no node its place, and what they took is remembered."""

from collections.abc import Callable

import msgspec
import pytest
from story import JOB, Story, running

from holdfast.api.decoding import decode_msgpack
from holdfast.api.event import StacksTaken, StopEnded
from holdfast.api.finding import Confidence, Evidence, FindingKind, Subject
from holdfast.api.longwork import WORK_S_MAX, LongWork
from holdfast.api.stacks import Stood
from holdfast.api.status import JobPhase
from holdfast.watchdog.brain.state import JobState

STOOD = (Evidence("stacks", "rank 1 of 3: train.py:9 in export", 5.0),)
EXPORT, EVALUATE = "train.py:9 in export", "train.py:31 in evaluate"


def hang(story: Story, node: int, step: int, **fields: object) -> Story:
    """A live process stands after `step`."""
    return story.find(FindingKind.HANG, node, cause="the process lost its pulse", step=step, **fields)


def works_on(story: Story, node: int, step: int) -> Story:
    return hang(story, node, step, innocent=True, confidence=Confidence.PROBABLE)


def at(story: Story, line: str, stood: Stood = Stood.OWN) -> Story:
    story.tell(StacksTaken(story.incident.id, STOOD, line, stood))
    return story


def left(story: Story) -> list[str]:
    return [each.node for each in story.state.avoided]


def again(story: Story, step: int) -> Story:
    """It trains beyond that step."""
    return story.wait(30).run(step).wait(60)


@pytest.mark.parametrize("times", [2, 3, 5])
def test_work_that_never_ends_is_held_against_no_node_however_often(times: int) -> None:
    story = running(3, spares=1)
    for time in range(times):
        again(at(works_on(story, 2, 100 * time + 5), EXPORT), 100 * (time + 1))
    assert not left(story)
    assert not story.state.suspicions
    assert story.state.phase is JobPhase.RUNNING
    assert {each.blamed for each in story.state.incidents} == {f"the script, rank {story.incident.culprit.rank}"}


@pytest.mark.parametrize("times", [2, 3, 5])
def test_a_rank_that_stands_at_one_line_again_tells_of_the_script(times: int) -> None:
    story = running(3, spares=1)
    for time in range(times):
        again(at(hang(story, 2, 100 * time + 5), EXPORT), 100 * (time + 1))
    assert not left(story)
    assert not story.state.suspicions
    assert all(each.innocent for each in story.state.incidents)
    assert "more than once" in story.incident.timeline[-1].what or story.incident.note
    rank = story.incident.culprit.rank
    assert story.state.work.allowed_s(rank, 7777, works=False) == WORK_S_MAX


def test_the_first_stop_of_a_rank_is_held_against_its_node_until_it_stands_there_again() -> None:
    story = at(hang(running(3, spares=1), 2, 5), EXPORT)
    assert [each.node for each in story.state.suspicions] == ["node-2"]
    assert not story.incident.innocent


@pytest.mark.parametrize(
    ("lines", "leaves"),
    [
        ((EXPORT, EVALUATE, EXPORT), False),
        ((EXPORT, EVALUATE, "train.py:7 in loss", "train.py:8 in step"), True),  # it is not the line
        (("", ""), True),  # nobody knows where
        ((EXPORT, ""), False),  # it may have been there
        ((EXPORT, EXPORT, EXPORT), False),
    ],
)
def test_a_node_leaves_for_hangs_whose_lines_differ_or_are_not_known(lines: tuple[str, ...], leaves: bool) -> None:
    story = running(3, spares=1)
    for time, line in enumerate(lines):
        hang(story, 2, 100 * time + 5)
        if line:
            at(story, line)
        again(story, 100 * (time + 1))
    assert (left(story) == ["node-2"]) is leaves


def test_a_stopped_process_tells_of_no_script() -> None:
    story = running(3, spares=1)
    for time in range(2):
        story.find(FindingKind.HANG, 2, cause="the process is stopped")
        again(at(story, EXPORT), 100 * (time + 1))
    assert left(story) == ["node-2"]
    assert not story.state.work.stops


def test_the_same_line_on_two_ranks_is_no_stop_that_came_again() -> None:
    story = running(3, spares=1)
    for time, node in enumerate((1, 2)):
        again(at(hang(story, node, 100 * time + 5), EXPORT), 100 * (time + 1))
    assert not any(each.innocent for each in story.state.incidents)


@pytest.mark.parametrize("spins", [True, False])
def test_a_rank_that_was_in_a_collective_that_nobody_passed_waited_and_nobody_is_known(spins: bool) -> None:
    story = hang(running(3, spares=1), 2, 5, innocent=spins, confidence=Confidence.PROBABLE)
    assert story.incident.innocent is spins
    assert bool(story.state.suspicions) is not spins
    at(story, EXPORT, Stood.WAITS)
    assert (story.incident.innocent, story.incident.confidence) == (False, Confidence.UNKNOWN)
    assert not story.state.work.stops
    assert not story.state.suspicions


def test_a_rank_that_waited_in_a_collective_by_the_journal_of_an_earlier_version_waited() -> None:
    story = works_on(running(3, spares=1), 2, 5)
    written = {"type": "StacksTaken", "incident": story.incident.id, "evidence": [], "line": EXPORT, "waits": True}
    story.tell(decode_msgpack(msgspec.msgpack.encode(written), StacksTaken))
    assert (story.incident.innocent, story.incident.confidence) == (False, Confidence.UNKNOWN)
    assert not story.state.work.stops


def test_what_a_process_proves_of_itself_holds_wherever_it_stands() -> None:
    story = hang(running(3, spares=1), 2, 5, confidence=Confidence.CERTAIN)
    at(story, EXPORT, Stood.WAITS)
    assert story.incident.confidence is Confidence.CERTAIN
    assert [each.node for each in story.state.suspicions] == ["node-2"]


@pytest.mark.parametrize("stops", [hang, works_on], ids=["it sleeps", "it spins"])
@pytest.mark.parametrize("lines", [(EXPORT, EXPORT), (EXPORT, EVALUATE)], ids=["at one line", "at two"])
def test_what_keeps_a_rank_in_a_collective_that_others_have_passed_is_its_node(
    stops: Callable[[Story, int, int], Story], lines: tuple[str, ...]
) -> None:
    story = running(3, spares=1)
    for time, line in enumerate(lines):
        at(stops(story, 2, 100 * time + 5), line, Stood.HELD)
        assert not story.incident.innocent
        assert story.incident.confidence is not Confidence.UNKNOWN
        assert [each.node for each in story.state.suspicions] == ["node-2"] * (time + 1)
        assert not any("run.during" in each.says for each in story.incident.evidence)
        again(story, 100 * (time + 1))
    assert left(story) == ["node-2"]
    assert {each.blamed for each in story.state.incidents} == {"node node-2 rank 1"}


def test_a_stop_in_a_collective_says_nothing_of_the_line_that_it_was_issued_at() -> None:
    story = running(3, spares=1)
    again(at(hang(story, 2, 5), EXPORT, Stood.HELD), 100)
    rank = story.incident.culprit.rank
    assert story.state.work.allowed_s(rank, 5, works=False) == 0.0
    again(at(works_on(story, 1, 105), EXPORT), 200)
    at(hang(story, 1, 205), EXPORT)
    assert story.incident.innocent
    assert not story.state.incidents[0].innocent


@pytest.mark.parametrize("is_work", [True, False])
def test_the_page_says_what_to_write(is_work: bool) -> None:
    story = (works_on if is_work else hang)(running(3, spares=1), 2, 5)
    at(story, EXPORT)
    said = story.incident.evidence[-1].says
    assert all(word in said for word in (EXPORT, "run.during(Phase.IDLE)", "faultPolicy.hang.timeout"))
    assert ("run.during" in story.incident.actions[0].reason) is is_work


def test_an_endless_loop_at_one_step_ends_the_job_and_blames_no_node() -> None:
    story = running(3, spares=1)
    for _ in range(10):
        if story.state.phase is JobPhase.FAILED:
            break
        at(works_on(story, 2, 5), EXPORT).wait(600)
    assert story.state.phase is JobPhase.FAILED
    assert not left(story)


@pytest.mark.parametrize(
    ("rank", "took_s", "worked", "known"),
    [
        (1, 12.0, True, LongWork(worked_s=12.0)),
        (1, 12.0, False, LongWork(waited_s={1: 12.0})),
        (0, 45.0, True, LongWork(worked_s=45.0)),
    ],
)
def test_what_long_stops_took_outlives_the_watchdog(
    rank: int, took_s: float, worked: bool, known: LongWork
) -> None:
    story = running(3)
    story.tell(StopEnded(story.round.number, rank, took_s, worked))
    assert story.state.work == known
    story.tell(StopEnded(story.round.number, rank, took_s / 2, worked))  # the longest counts
    kept = msgspec.msgpack.decode(msgspec.msgpack.encode(story.state), type=JobState)
    assert kept.work == known


@pytest.mark.parametrize("confidence", [Confidence.CERTAIN, Confidence.UNKNOWN])
def test_after_a_hang_at_a_step_there_is_all_the_time_at_that_step(confidence: Confidence) -> None:
    story = running(3)
    fields: dict[str, object] = {} if confidence is Confidence.CERTAIN else {"subject": Subject(JOB)}
    hang(story, 2, 40, confidence=confidence, **fields)
    rank = story.incident.culprit.rank
    assert story.state.work.allowed_s(rank, 40, works=False) == WORK_S_MAX
    assert story.state.work.allowed_s(rank, 41, works=False) == 0.0


@pytest.mark.parametrize("stood", Stood)
def test_stacks_that_come_late_change_nothing_of_what_explains_more(stood: Stood) -> None:
    story = works_on(running(3, spares=1), 2, 5)
    first = story.incident.id
    story.xid(2, 79)
    known = next(each for each in story.state.incidents if each.id == first)
    assert known.kind is FindingKind.XID
    story.tell(StacksTaken(first, STOOD, EXPORT, stood))
    after = next(each for each in story.state.incidents if each.id == first)
    assert (after.confidence, after.innocent, after.known_at) == (known.confidence, False, known.known_at)
    assert not any("run.during" in each.says for each in after.evidence)
    assert story.state.work == LongWork()
