"""What the brain does about a loss that rose and stays."""

import pytest
from msgspec.structs import replace
from story import JOB, Story, running

from holdfast.api.event import MemberEntered, RestoreReported, RoundProgressed
from holdfast.api.finding import Confidence, FindingKind, Subject
from holdfast.api.incident import IncidentState, Rung
from holdfast.api.intervention import InterventionAction
from holdfast.api.learningrate import LearningRateCut, cuts_from
from holdfast.api.policy import LossPolicy, XidAction
from holdfast.api.round import Follows, Tier
from holdfast.api.status import JobPhase
from holdfast.watchdog.brain.history import KEPT_CUTS, with_cut
from holdfast.watchdog.brain.state import Rewind
from holdfast.watchdog.brain.status import unfollowed
from holdfast.watchdog.brain.step import Notify, changed

RISEN = {"cause": "the loss rose and stays", "confidence": Confidence.UNKNOWN, "subject": Subject(JOB)}


def diverging(story: Story, step: int, **fields: object) -> Story:
    return story.find(FindingKind.DIVERGENCE, 1, **{**RISEN, "step": step, **fields})


def test_all_go_back_to_the_newest_checkpoint_before_it_and_leave_out_what_led_to_it() -> None:
    loss = LossPolicy(50, learning_rate_scale=0.5, skip_batches=20)
    story = diverging(running(step=150, commit=40, loss=loss).commit(90).commit(140), 97)
    assert (story.incident.kind, story.incident.rung) == (FindingKind.DIVERGENCE, Rung.REWIND)
    restore = story.round.restore
    assert (restore.tier, restore.step) == (Tier.CHECKPOINT, 90)
    # Steps 91 to 96 led to it, and 20 more.
    assert (restore.skip_until, restore.learning_rate_scale) == (116, 0.5)
    assert "pass over the batches up to it and 20 more, with the learning rate times 0.5" in story.round.reason
    assert (story.members, story.state.avoided) == (["node-1", "node-2", "node-3"], ())
    story.run(91, restored=90)
    assert story.incident.state is IncidentState.RECOVERED


def test_nothing_but_the_steps_is_changed_where_the_spec_asks_for_no_more() -> None:
    restore = diverging(running(step=150, commit=90, loss=LossPolicy(50)), 97).round.restore
    assert (restore.step, restore.skip_until, restore.learning_rate_scale) == (90, None, 1.0)


def test_the_same_again_without_progress_asks_a_human_and_stops_nothing() -> None:
    story = diverging(running(step=150, commit=90, loss=LossPolicy(50)), 97)
    story.run(91, restored=90)
    number = story.round.number
    diverging(story, 96)
    assert (story.round.number, story.state.phase, story.state.recovery) == (number, JobPhase.RUNNING, None)
    assert (story.incident.state, story.incident.rung) == (IncidentState.PAGED, Rung.PAGE)
    told = [effect.text for effect in story.effects if isinstance(effect, Notify)]
    assert "has saved nothing beyond that since; training goes on" in told[-1]


def test_without_a_checkpoint_of_before_a_human_is_asked_and_nobody_begins_anew() -> None:
    story = diverging(running(step=150, commit=140, loss=LossPolicy(50)), 97)
    assert (story.state.phase, story.incident.state) == (JobPhase.RUNNING, IncidentState.PAGED)
    assert "no checkpoint of a step before it is there" in story.incident.actions[-1].reason


def test_one_rank_that_is_apart_from_the_others_is_told_of_and_left_alone() -> None:
    story = running(step=150, commit=90, loss=LossPolicy(50))
    number = story.round.number
    diverging(story, 97, subject=Subject(JOB, node="node-1", member="node-1", rank=0), asks=XidAction.WATCH)
    assert (story.round.number, story.state.avoided) == (number, ())
    assert (story.incident.state, story.incident.culprit.rank) == (IncidentState.RECOVERED, 0)


def test_a_nan_after_a_divergence_is_another_fault() -> None:
    story = diverging(running(step=150, commit=90, loss=LossPolicy(50)), 97)
    story.run(91, restored=90)
    story.find(FindingKind.NON_FINITE, 1, cause="loss is nan", step=96)
    assert (story.state.phase, story.round.restore.step) == (JobPhase.RECOVERING, 90)


def test_a_checkpoint_that_is_not_healthy_is_none_of_before() -> None:
    story = running(step=150, commit=90, loss=LossPolicy(50)).stored(90, unhealthy=(90,))
    story.state = changed(story.state, unhealthy_from=85)
    diverging(story, 97)
    assert (story.state.phase, story.incident.state) == (JobPhase.RUNNING, IncidentState.PAGED)


SLOW = LossPolicy(50, learning_rate_scale=0.5, learning_rate_steps=100)
CUT = LearningRateCut(0.5, after=90, until=96 + 100)


def test_the_learning_rate_is_cut_for_so_many_steps_and_later_rounds_know_of_it() -> None:
    story = diverging(running(step=150, commit=90, loss=SLOW), 97)
    assert story.round.restore.learning_rate_cuts == (CUT,)
    story.run(91, restored=90).commit(120).die(1)
    restore = story.round.restore
    assert (restore.step, restore.learning_rate_scale, restore.learning_rate_cuts) == (120, 1.0, (CUT,))
    story.run(81, restored=80).die(2).wait(15)  # what had been saved since is damaged
    assert story.round.restore.learning_rate_cuts == (replace(CUT, after=80),)


def test_for_good_where_the_spec_gives_no_steps() -> None:
    loss = LossPolicy(50, learning_rate_scale=0.5)
    story = diverging(running(step=150, commit=90, loss=loss), 97)
    assert story.round.restore.learning_rate_cuts == (LearningRateCut(0.5, after=90),)


def test_a_human_who_goes_back_to_before_it_says_how_fast_to_learn() -> None:
    story = diverging(running(step=150, commit=40, loss=SLOW).commit(90), 97).run(91, restored=90).commit(120)
    story.ask(InterventionAction.SKIP_BATCHES, skip_batches=3)
    assert story.round.restore.learning_rate_cuts == (CUT,)
    story.run(121, restored=120).ask(InterventionAction.REWIND, "back", to_step=60, learning_rate_scale=0.25)
    assert story.round.restore.learning_rate_cuts == (LearningRateCut(0.25, after=40),)


def test_what_could_not_be_gone_back_to_is_not_cut_for() -> None:
    story = running(2, step=75, commit=60).stored(60)
    story.ask(InterventionAction.REWIND, to_step=40, learning_rate_scale=0.5)
    assert story.round.restore.learning_rate_cuts == (LearningRateCut(0.5, after=40),)
    story.run(61, restored=60)
    assert story.state.learning_rate_cuts == ()
    story.die(1).wait(15)
    restore = story.round.restore
    assert (restore.step, restore.learning_rate_scale, restore.cuts()) == (60, 1.0, ()), "nor in any later round"


BRIEF = LearningRateCut(0.5, after=45, until=100)


@pytest.mark.parametrize(
    ("restored", "hold"),
    [(60, (BRIEF,)), (39, (LearningRateCut(0.25, after=39),)), (30, (LearningRateCut(0.25, after=30),))],
)
def test_where_it_is_not_known_whether_it_can_be_gone_back_to_the_cuts_are_those_of_what_was_restored(
    restored: int, hold: tuple[LearningRateCut, ...]
) -> None:
    story = running(2, step=75, commit=40).stored(40, 50, 60)
    story.state = changed(story.state, learning_rate_cuts=(BRIEF,))
    story.ask(InterventionAction.REWIND, to_step=39, learning_rate_scale=0.25)
    directive = story.round.restore
    assert directive.learning_rate_cuts == (BRIEF, LearningRateCut(0.25, after=39)), "workers may need either"
    assert cuts_from(directive.settled(restored).cuts(), restored) == hold
    story.run(restored + 1, restored=restored)
    assert story.state.learning_rate_cuts == hold
    story.die(1).wait(15).run(restored + 1, restored=restored)
    assert story.state.learning_rate_cuts == hold, "a second round makes nothing of it once more"


def test_what_is_asked_for_while_a_round_goes_back_is_not_settled_by_that_round() -> None:
    story = running(2, step=75, commit=40).stored(40, 50, 60)
    story.state = changed(story.state, learning_rate_cuts=(BRIEF,))
    story.ask(InterventionAction.REWIND, to_step=39)
    going = story.round
    story.state = changed(story.state, rewind=Rewind(replace(going.restore, step=30)))
    story.tell(RestoreReported(going.number, 60))
    assert story.state.rewind == Rewind(replace(going.restore, step=30))
    assert story.state.learning_rate_cuts == (BRIEF,)


def test_who_goes_back_to_where_a_cut_began_says_how_fast_to_learn() -> None:
    story = diverging(running(step=150, commit=90, loss=SLOW), 97).run(91, restored=90)
    story.ask(InterventionAction.REWIND, to_step=90)
    assert story.round.restore.learning_rate_cuts == ()


def test_of_very_many_cuts_one_that_is_over_goes_before_one_that_still_holds() -> None:
    lasting, over = LearningRateCut(0.5, after=1), LearningRateCut(0.5, after=2, until=90)
    newer = tuple(LearningRateCut(0.9, after=step) for step in range(3, KEPT_CUTS + 1))
    newest = LearningRateCut(0.9, after=90)
    assert with_cut((lasting, over, *newer), newest) == (lasting, *newer, newest)
    assert with_cut((over, lasting, *newer), LearningRateCut(0.9, after=89)) == (
        lasting,
        *newer,
        LearningRateCut(0.9, after=89),
    ), "where none is over, the oldest"
    assert with_cut((over,), newest) == (over, newest)


@pytest.mark.parametrize(("restored", "kept"), [(60, True), (39, False)], ids=["younger", "as asked"])
def test_a_cut_stays_with_the_state_that_has_it(restored: int, kept: bool) -> None:
    story = running(2, step=75, commit=60).stored(60)
    earlier = LearningRateCut(0.5, after=45, until=100)
    story.state = changed(story.state, learning_rate_cuts=(earlier,))
    story.ask(InterventionAction.REWIND, to_step=40)
    restore = story.round.restore
    assert (restore.step, restore.otherwise) == (40, 60)
    assert restore.settled(restored).cuts() == ((earlier,) if kept else ())
    story.run(restored + 1, restored=restored)
    assert story.state.learning_rate_cuts == ((earlier,) if kept else ())


def test_beginning_anew_forgets_every_cut() -> None:
    story = diverging(running(step=150, commit=90, loss=SLOW), 97).run(91, restored=90)
    story.ask(InterventionAction.RESTART, fresh=True)
    assert story.round.restore.learning_rate_cuts == ()


def test_one_rank_that_came_to_be_apart_is_gone_back_for_and_starts_anew_with_nothing_passed_over() -> None:
    loss = LossPolicy(50, learning_rate_scale=0.5, skip_batches=20)
    story = running(step=150, commit=40, loss=loss).commit(90)
    diverging(story, 97, subject=Subject(JOB, node="node-2", member="node-2", rank=1))
    restore = story.round.restore
    assert (restore.step, restore.skip_until, restore.learning_rate_cuts) == (90, None, ())
    assert (story.round.fresh_ranks, story.state.avoided) == ((1,), ())
    story.run(91, restored=90)
    assert story.incident.state is IncidentState.RECOVERED
    diverging(story, 97, subject=Subject(JOB, node="node-2", member="node-2", rank=1))
    assert (story.state.phase, story.incident.state) == (JobPhase.RUNNING, IncidentState.PAGED)


@pytest.mark.parametrize(
    ("follows", "missing"),
    [
        ((Follows.BATCHES, Follows.LEARNING_RATE), []),
        ((Follows.BATCHES,), ["cut its learning rate"]),
        ((), ["pass over batches", "cut its learning rate"]),
        (None, ["go back for its loss", "pass over batches", "cut its learning rate"]),
    ],
)
def test_a_script_that_cannot_follow_is_told_of_as_soon_as_it_trains(
    follows: tuple[Follows, ...] | None, missing: list[str]
) -> None:
    story = Story(loss=LossPolicy(50, learning_rate_scale=0.5, skip_batches=20)).join(1, 2, 3).wait(20)
    number = story.round.number
    assert unfollowed(story.state) == "", "nobody knows yet"
    for share in story.round.ranks:
        story.tell(MemberEntered(share.member, number, reentrant=True))
    if follows is not None:
        story.tell(RestoreReported(number, None, follows=follows))
    story.tell(RoundProgressed(number, 1))
    says = unfollowed(story.state)
    assert [
        each for each in ("go back for its loss", "pass over batches", "cut its learning rate") if each in says
    ] == missing
    assert bool(says) is bool(missing)
    story.resubmit(loss=LossPolicy(50))
    assert ("go back" in unfollowed(story.state)) is (follows is None), "only what is wanted counts"
    story.resubmit(loss=None)
    assert unfollowed(story.state) == ""
