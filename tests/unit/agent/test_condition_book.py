"""What a source keeps of the conditions it raised."""

from holdfast.agent.conditions.book import CLEARED_KEPT_S, KEPT_MAX, OPEN_TOLD_MAX, ConditionBook, Held
from holdfast.api.condition import AllClear, Condition, ConditionKind, ConditionState

PCIE, NVLINK = ConditionKind.PCIE_DEGRADED, ConditionKind.NVLINK_DOWN


def test_a_condition_said_again_keeps_its_age_and_takes_the_new_words() -> None:
    standing = ConditionBook()
    standing.hold(PCIE, "8 of 16 lanes", 100.0, gpu="GPU-a")
    standing.hold(PCIE, "4 of 16 lanes", 130.0, gpu="GPU-a")
    assert standing.report(140.0) == (Condition(PCIE, ConditionState.RAISED, 40.0, "4 of 16 lanes", "GPU-a"),)


def test_what_is_cleared_is_said_for_a_minute_and_then_forgotten() -> None:
    standing = ConditionBook()
    standing.hold(PCIE, "8 of 16 lanes", 100.0)
    standing.clear(PCIE, "16 lanes again", 200.0)
    cleared_at_last = Condition(PCIE, ConditionState.CLEARED, CLEARED_KEPT_S, "16 lanes again")
    assert standing.report(200.0 + CLEARED_KEPT_S) == (cleared_at_last,)
    assert standing.report(200.1 + CLEARED_KEPT_S) == ()


def test_clearing_what_does_not_hold_says_nothing() -> None:
    standing = ConditionBook()
    standing.clear(PCIE, "fine", 100.0)
    assert standing.report(100.0) == ()
    standing.hold(PCIE, "narrow", 100.0)
    standing.clear(PCIE, "fine", 110.0)
    standing.clear(PCIE, "still fine", 150.0)
    assert standing.report(150.0)[0].age_s == 40.0


def test_a_condition_that_comes_back_begins_anew() -> None:
    standing = ConditionBook()
    standing.hold(PCIE, "narrow", 100.0)
    standing.clear(PCIE, "fine", 110.0)
    standing.hold(PCIE, "narrow", 120.0)
    assert standing.holds(PCIE)
    assert standing.report(121.0) == (Condition(PCIE, ConditionState.RAISED, 1.0, "narrow"),)


def test_gpus_and_devices_are_kept_apart_and_their_number_is_bounded() -> None:
    standing = ConditionBook()
    for link in range(KEPT_MAX + 10):
        standing.hold(NVLINK, "down", 100.0, gpu="GPU-a", device=f"nvlink{link}")
    assert len(standing.report(100.0)) == KEPT_MAX
    assert standing.holds(NVLINK, gpu="GPU-a", device="nvlink0")
    assert not standing.holds(NVLINK, gpu="GPU-b", device="nvlink0")


def test_a_kind_is_clear_once_its_rule_was_met_but_for_the_parts_in_doubt_and_those_it_holds_of() -> None:
    standing = ConditionBook()
    standing.doubt(PCIE, gpu="GPU-a")
    assert standing.all_clear() == ()
    standing.clear(PCIE, "16 lanes", 100.0, gpu="GPU-a")
    standing.doubt(PCIE, gpu="GPU-b")
    standing.hold(PCIE, "8 lanes", 100.0, gpu="GPU-c")
    assert standing.all_clear() == (AllClear(PCIE, (("GPU-b", ""), ("GPU-c", ""))),)
    standing.clear(PCIE, "16 lanes", 200.0, gpu="GPU-b")
    standing.clear(PCIE, "16 lanes", 200.0, gpu="GPU-c")
    standing.doubt(PCIE, gpu="GPU-a")  # idle again: it was well, and nothing was raised since
    assert standing.all_clear() == (AllClear(PCIE),)


def test_a_kind_that_holds_of_all_it_was_judged_on_is_not_clear_anywhere() -> None:
    standing = ConditionBook()
    standing.clear(PCIE, "16 lanes", 100.0)
    standing.hold(PCIE, "8 lanes", 110.0)
    standing.doubt(PCIE)
    assert standing.all_clear() == ()


def test_nothing_is_said_of_a_kind_with_too_many_parts_in_doubt() -> None:
    standing = ConditionBook()
    standing.clear(NVLINK, "up", 100.0, gpu="GPU-a", device="nvlink99")
    for link in range(OPEN_TOLD_MAX):
        standing.doubt(NVLINK, gpu="GPU-a", device=f"nvlink{link}")
    assert len(standing.all_clear()) == 1
    standing.doubt(NVLINK, gpu="GPU-b", device="nvlink0")
    assert standing.all_clear() == ()


def test_what_an_earlier_run_held_holds_on_with_its_age_and_is_held_for_the_next() -> None:
    standing = ConditionBook()
    before = Held(NVLINK, "link 3 is down", 40.0, "GPU-a", "nvlink3")
    standing.take_up((before,))
    raised = Condition(NVLINK, ConditionState.RAISED, 60.0, "link 3 is down", "GPU-a", "nvlink3")
    assert standing.report(100.0) == (raised,)
    assert standing.held() == (before,)
    standing.clear(NVLINK, "link 3 is up", 100.0, gpu="GPU-a", device="nvlink3")
    assert standing.held() == ()
