"""Which steps a cut of the learning rate is for, and which states have it."""

from msgspec.structs import replace

from holdfast.api.control import Assignment
from holdfast.api.learningrate import LearningRateCut, cuts_from, factor_at
from holdfast.api.round import Endpoint, Restore, Tier

BRIEF, LASTING = LearningRateCut(0.5, after=90, until=120), LearningRateCut(0.1, after=100)


def test_at_a_step_all_cuts_that_are_not_over_hold() -> None:
    assert [factor_at((BRIEF, LASTING), step) for step in (1, 120, 121)] == [0.05, 0.05, 0.1]
    assert factor_at((), 7) == 1.0


def test_a_state_has_the_cuts_that_its_step_was_trained_with() -> None:
    assert [BRIEF.is_in(step) for step in (90, 91, 120, 121)] == [False, True, True, False]
    assert [LASTING.is_in(step) for step in (100, 10**6)] == [False, True]


def test_what_goes_on_from_an_earlier_step_has_none_in_it() -> None:
    assert cuts_from((BRIEF, LASTING), 95) == (BRIEF, LearningRateCut(0.1, after=95))


def test_a_directive_of_who_knows_no_cuts_asks_for_one_that_lasts() -> None:
    assert Restore(Tier.CHECKPOINT, 40, learning_rate_scale=0.5).cuts() == (LearningRateCut(0.5, after=40),)
    assert Restore(Tier.CHECKPOINT, 40, learning_rate_scale=0.5, learning_rate_cuts=(BRIEF,)).cuts() == (BRIEF,)
    assert Restore().cuts() == ()


def test_batches_are_passed_over_up_to_a_step_or_so_many_and_not_behind_what_is_younger() -> None:
    assert Restore(Tier.CHECKPOINT, 40, skip_batches=7).batches_to_skip(40) == 7
    assert Restore(Tier.CHECKPOINT, 40, skip_until=50).batches_to_skip(30) == 20
    assert Restore(Tier.CHECKPOINT, 40, skip_until=30).batches_to_skip(40) == 0
    assert Restore(Tier.CHECKPOINT, 40, skip_batches=7).batches_to_skip(60) == 0
    assert Restore(skip_batches=7).batches_to_skip(None) == 7


def test_once_it_is_known_what_was_restored_a_directive_says_what_holds() -> None:
    asked = LearningRateCut(0.25, after=95)
    either = Restore(Tier.CHECKPOINT, 95, "", 7, 0.25, otherwise=120, learning_rate_cuts=(BRIEF, LASTING, asked))
    assert either.settled(95) == Restore(Tier.CHECKPOINT, 95, "", 7, 0.25, learning_rate_cuts=(BRIEF, asked))
    assert either.settled(110) == Restore(Tier.CHECKPOINT, 110, learning_rate_cuts=(BRIEF, LASTING))
    unscaled = replace(either, learning_rate_scale=1.0, learning_rate_cuts=(BRIEF, LASTING))
    assert unscaled.settled(110).cuts() == (BRIEF, LASTING)
    unaware = replace(either, learning_rate_cuts=())
    assert (unaware.settled(95).cuts(), unaware.settled(110).cuts()) == ((asked,), ())
    part = Assignment("job", 3, 0, 0, 1, 1, Endpoint("", 0), either, "")
    assert part.learning_rate_factor(97) == 0.5 * 0.25, "of who does not say what it restored: what was asked for"
    known = replace(either, otherwise=None)
    assert known.settled(110) is known
