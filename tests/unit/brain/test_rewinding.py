"""Going back on request: by what storage holds, and answered with what was truly restored."""

import pytest
from story import Story, running

from holdfast.api.checkpoint import TOLD_MAX, StoredCheckpoint, told_of
from holdfast.api.event import RestoreReported, StorageListed
from holdfast.api.intervention import InterventionAction, InterventionState
from holdfast.api.policy import MemoryPolicy
from holdfast.api.round import Tier
from holdfast.api.status import JobPhase
from holdfast.watchdog.requests import pending
from holdfast.watchdog.rewinding import known
from holdfast.watchdog.step import changed

DONE, REFUSED, PENDING = InterventionState.DONE, InterventionState.REFUSED, InterventionState.PENDING


def rewind(story: Story, step: int, id: str = "i1") -> tuple[InterventionState, str]:
    outcome = story.ask(InterventionAction.REWIND, id, to_step=step)
    return outcome.state, outcome.outcome


def answer(story: Story, id: str = "i1") -> tuple[InterventionState, str] | None:
    given = story.answer(id)
    return None if given is None else (given.state, given.outcome)


def steps(story: Story) -> list[int]:
    return [each.step for each in known(story.state)]


def test_a_checkpoint_of_an_earlier_life_can_be_gone_back_to() -> None:
    story = Story(nodes_max=2).join(1, 2)
    story.stored(20).run(25, restored=20)
    assert rewind(story, 21)[0] is PENDING
    assert story.round.restore.step == 20


def test_one_that_is_in_storage_no_more_is_not_promised() -> None:
    story = running(2, commit=600).stored(600).commit(620).commit(640).stored(600, 620)
    story.stored(600)
    assert rewind(story, 640) == (
        PENDING,
        "under way: round 3 is to restore step 600 (nothing from 601 to 640 is in storage)",
    )
    story.run(601, restored=600)
    assert answer(story) == (
        DONE,
        "round 3 restored step 600 (640 was asked for; nothing from 601 to 640 is in storage)",
    )


def test_the_answer_comes_with_the_restore_and_not_before() -> None:
    story = running(2, commit=40).stored(20, 40)
    number = story.round.number
    assert rewind(story, 40)[0] is PENDING
    story.tell(RestoreReported(number, 40))
    assert answer(story) is None, "that was the round before"
    assert pending(story.state, "i1") == "under way: round 3 is to restore step 40"
    story.run(41, restored=40)
    assert answer(story) == (DONE, "round 3 restored step 40")
    assert pending(story.state, "i1") is None
    before = story.state
    story.ask(InterventionAction.REWIND, "i1", to_step=40)
    assert story.state == before, "asked again, it is the same request"


def test_a_restore_that_ends_elsewhere_says_so() -> None:
    story = running(2, commit=40).stored(20, 40)
    rewind(story, 45)
    story.stored(20)
    story.tell(RestoreReported(story.round.number, 20, ("step-00000040: the block differs",)))
    assert answer(story) == (
        DONE,
        "round 3 restored step 20 (45 was asked for; step 40 was intended; "
        "passed over step-00000040: the block differs)",
    )
    assert steps(story) == [20]


def test_a_round_that_begins_afresh_instead_says_so() -> None:
    story = running(2, commit=40).stored(40)
    rewind(story, 40)
    story.tell(RestoreReported(story.round.number, None, ("step-00000040: cut",)))
    assert answer(story) == (DONE, "round 3 began afresh (40 was asked for; passed over step-00000040: cut)")


def test_a_round_that_dies_before_it_has_restored_hands_the_request_on() -> None:
    story = running(2, commit=40).stored(20, 40)
    rewind(story, 20)
    story.die(1).wait(15)
    assert answer(story) is None
    assert story.round.restore.step == 20
    story.run(21, restored=20)
    assert answer(story) == (DONE, f"round {story.round.number} restored step 20")


def test_where_nothing_was_told_of_at_or_before_it_the_storage_is_looked_at() -> None:
    story = running(2, commit=40).stored(40, 50, 60)
    assert rewind(story, 39) == (
        PENDING,
        "under way: round 3 is to restore what storage holds at or before step 39, if it does, else step 60; as "
        "far as was told, nothing that can be restored is at or before step 39: there is 40, 50, 60",
    )
    assert (story.round.restore.step, story.round.restore.otherwise) == (39, 60)
    assert steps(story) == [40, 50, 60], "nothing is given up before it is known"
    story.run(31, restored=30)
    assert answer(story) == (DONE, "round 3 restored step 30 (39 was asked for)")
    assert steps(story) == []


def test_where_storage_holds_nothing_there_either_it_is_refused_and_the_job_goes_on_from_the_newest() -> None:
    story = running(2, commit=40).stored(40, 60)
    rewind(story, 39)
    story.run(61, restored=60)
    assert answer(story) == (
        REFUSED,
        "round 3 restored step 60 (39 was asked for; nothing that can be restored is at or before it)",
    )
    assert (story.state.phase, steps(story)) == (JobPhase.RUNNING, [40, 60])


def test_where_there_is_nothing_to_go_on_from_it_is_refused_at_once() -> None:
    story = running(2, commit=40).stored()
    assert rewind(story, 99)[1].endswith("there is no checkpoint")
    story.stored(40)
    assert rewind(story, 0, "i2") == (
        REFUSED,
        "toStep: 0 is not accepted; nothing that can be restored is at or before step 0: there is 40",
    )


def test_of_very_many_some_are_named_and_all_are_counted() -> None:
    line = [StoredCheckpoint(step, 1, f"step-{step:08d}", healthy=True) for step in range(5000, 0, -5)]
    told = told_of(line)
    assert (len(told), told[0].step, told[-1].step) == (TOLD_MAX, 5000, 5)
    story = running(2, commit=40)
    story.tell(StorageListed(story.round.number, "/ckpt", len(line), tuple(told)))
    assert rewind(story, 0)[1].endswith("there is 5, ... 4975, 4980, 4985, 4990, 4995, 5000 (1000 in all)")
    assert rewind(story, 4998, "i2")[1].startswith("under way: round 3 is to restore step 4995")
    story.run(4996, restored=4995)
    assert rewind(story, 123, "i3")[1] == (
        "under way: round 4 is to restore the newest checkpoint at or before step 123, "
        "which is none of those that are named"
    )
    assert story.round.restore.step == 123, "the library finds it"
    story.run(121, restored=120)
    assert answer(story, "i3") == (DONE, "round 4 restored step 120 (123 was asked for)")


def test_after_a_commit_the_list_stays_bounded() -> None:
    story = running(2, commit=40).stored(*range(100, 100 + TOLD_MAX))
    story.commit(500)
    assert story.state.storage is not None
    assert (len(steps(story)), story.state.storage.count) == (TOLD_MAX, TOLD_MAX + 1)
    assert (steps(story)[0], steps(story)[-1]) == (100, 500)


def test_a_rewind_of_a_job_that_stands_still_says_as_of_when_and_is_done_when_it_goes_on() -> None:
    story = running(2, commit=40).stored(20, 40)
    story.now = 86_400.0
    story.stored(10, 20, 40)
    story.ask(InterventionAction.PAUSE, "p")
    story.wait(100)
    assert story.state.phase is JobPhase.SUSPENDED
    assert rewind(story, 30) == (
        PENDING,
        "under way: the next round is to restore step 20 (nothing from 21 to 30 is in storage), "
        "as round 2 last told at 1970-01-02 00:00:00Z",
    )
    assert rewind(story, 0, "low")[1].endswith("there is 10, 20, as round 2 last told at 1970-01-02 00:00:00Z")
    story.ask(InterventionAction.RESUME, "r")
    assert story.round.restore.step == 20
    story.run(21, restored=20)
    assert answer(story) == (
        DONE,
        f"round {story.round.number} restored step 20 (30 was asked for; nothing from 21 to 30 is in storage)",
    )


def test_whoever_is_overtaken_by_another_rewind_or_the_end_is_told() -> None:
    story = running(2, commit=40).stored(20, 40)
    rewind(story, 40)
    rewind(story, 20, "i2")
    assert answer(story) == (REFUSED, "another request to go back took its place")
    story.fail()
    state, says = answer(story, "i2") or (None, "")
    assert state is REFUSED
    assert says.startswith("the job is over: ")


def test_skipping_batches_is_answered_alike() -> None:
    story = running(2, commit=40).stored(20, 40)
    assert story.ask(InterventionAction.SKIP_BATCHES, skip_batches=5).state is PENDING
    story.run(41, restored=40)
    assert answer(story) == (DONE, "round 3 restored step 40")


@pytest.mark.parametrize(
    ("unhealthy", "unhealthy_from", "limit", "goes_to", "why"),
    [
        ((50,), None, 55, 40, "not healthy: 50"),
        ((), 45, 99, 40, "not healthy: 50, 60"),
        ((40, 50, 60), None, 60, 20, "not healthy: 40, 50, 60"),
        ((20, 40, 50, 60), 60, 60, 50, "not healthy: 60"),
    ],
)
def test_what_is_not_healthy_is_passed_over_as_the_library_will(
    unhealthy: tuple[int, ...], unhealthy_from: int | None, limit: int, goes_to: int, why: str
) -> None:
    story = running(2, commit=40).stored(20, 40, 50, 60, unhealthy=unhealthy)
    story.state = changed(story.state, unhealthy_from=unhealthy_from)
    assert rewind(story, limit) == (PENDING, f"under way: round 3 is to restore step {goes_to} ({why})")
    assert (story.round.restore.step, story.round.restore.unhealthy_from) == (goes_to, unhealthy_from)


def test_when_nothing_healthy_is_at_or_before_it_the_refusal_names_what_is_not() -> None:
    story = running(2, commit=40).stored(40, 50)
    story.state = changed(story.state, unhealthy_from=30)
    assert rewind(story, 60)[1].endswith("there is 40, 50; not healthy: 40, 50")


def test_what_a_rewind_gave_up_is_no_more_to_go_back_to() -> None:
    story = running(2, commit=40).stored(20, 40, 60)
    rewind(story, 20)
    assert steps(story) == [20]
    story.run(21, restored=20)
    rewind(story, 60, "i2")
    assert story.round.restore.step == 20


def test_a_list_of_a_round_that_is_over_or_to_be_given_up_is_no_news() -> None:
    story = running(2, commit=40).stored(20, 40)
    number = story.round.number
    story.ask(InterventionAction.PAUSE, "p")
    rewind(story, 20)
    story.tell(StorageListed(number, "/ckpt", 0))
    assert steps(story) == [20]
    story.wait(100)
    story.ask(InterventionAction.RESUME, "r")
    story.tell(StorageListed(number, "/ckpt", 0))
    assert steps(story) == [20]


def test_the_next_round_restores_the_newest_that_storage_holds() -> None:
    story = running(2, commit=40).commit(60).stored(40).die(1)
    assert story.round.restore.step == 40


def test_a_restore_from_memory_leaves_the_list_as_it_is() -> None:
    story = Story(nodes_max=2, memory=MemoryPolicy()).join(1, 2).run(1).stored().commit(40).run_on(55).die(1)
    story.stored(40)
    story.tell(RestoreReported(story.round.number, 54, tier=Tier.MEMORY))
    assert steps(story) == [40]
