"""A policy that is held back, and what becomes of it: the journal alone says which one is in force."""

from story import running

from holdfast.api.intervention import InterventionAction, InterventionState
from holdfast.api.policy import NoticeAction, RestartBudget


def test_the_rest_of_a_later_spec_counts_while_its_policy_is_held_back() -> None:
    story = running(2, generation=1, uid="one").resubmit(generation=2, held=True, suspend=True)
    assert story.state.policy is not None
    assert story.state.policy.suspend


def test_what_was_held_back_takes_effect_though_the_spec_has_no_later_version() -> None:
    story = running(2, generation=1, uid="one").resubmit(generation=2, held=True)
    known = story.state.policy
    assert known is not None
    story.resubmit(generation=2, held=False, notices=NoticeAction.REPORT, restarts=RestartBudget(3))
    now = story.state.policy
    assert now is not None
    assert (now.held, now.notices, now.restarts) == (False, NoticeAction.REPORT, RestartBudget(3))


def test_a_resize_that_came_meanwhile_stands() -> None:
    story = running(2, generation=1, uid="one").resubmit(generation=2, held=True)
    assert story.ask(InterventionAction.RESIZE, nodes=3).state is InterventionState.DONE
    story.resubmit(generation=2, held=False, nodes_max=2, spares=1)
    assert story.state.policy is not None
    assert (story.state.policy.nodes_max, story.state.policy.spares) == (3, 1)


def test_of_a_version_that_is_in_force_nothing_is_held_back_later() -> None:
    story = running(2, generation=2, uid="one")
    story.resubmit(generation=2, held=True, notices=NoticeAction.REPORT)
    assert story.state.policy is not None
    assert (story.state.policy.held, story.state.policy.notices) == (False, NoticeAction.MIGRATE)
