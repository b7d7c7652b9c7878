"""A rule of a table: how long what is seen has to last, and what a look that tells nothing does to that time."""

from collections.abc import Sequence

import pytest

from holdfast.agent.conditions.book import ConditionBook, Debounce, Rule, Unknown
from holdfast.api.condition import ConditionKind, ConditionState

Looks = Sequence[tuple[float, bool | None]]
PCIE = ConditionKind.PCIE_DEGRADED


def holds(looks: Looks, unknown: Unknown, gap_s_max: float = float("inf")) -> bool | None:
    """Of something that is raised after 5 s and cleared after 60."""
    debounce = Debounce(5.0, 60.0, gap_s_max, unknown)
    return [debounce.observe(present, now) for now, present in looks][-1]


ILL = [(0.0, True), (4.0, None), (100.0, True), (101.0, True)]
WELL = [(0.0, True), (5.0, True), (10.0, False), (50.0, False), (55.0, None), (60.0, False), (85.0, False)]


@pytest.mark.parametrize(
    ("unknown", "ill", "well"),
    [
        pytest.param(Unknown.STOPS, None, False, id="the time stands still"),
        pytest.param(Unknown.RESTARTS, None, True, id="it begins anew"),
        pytest.param(Unknown.RESTARTS_CLEARING, True, True, id="only that of being well begins anew"),
    ],
)
def test_what_a_look_that_tells_nothing_does_is_the_rules_choice(
    unknown: Unknown, ill: bool | None, well: bool | None
) -> None:
    assert holds(ILL, unknown) is ill
    assert holds(WELL, unknown) is well


def test_the_time_that_stood_still_goes_on_and_the_one_that_begins_anew_does_not() -> None:
    looks = [(0.0, True), (3.0, True), (4.0, None), (100.0, True), (101.0, True)]
    assert holds(looks, Unknown.STOPS) is None
    assert holds([*looks, (102.0, True)], Unknown.STOPS) is True
    assert holds([*looks, (102.0, True)], Unknown.RESTARTS) is None
    assert holds([*looks, (105.0, True)], Unknown.RESTARTS) is True


def test_what_was_not_looked_at_for_long_does_not_last() -> None:
    looks = [(0.0, True), (3.0, True), (20.0, True), (21.0, True)]
    assert holds(looks, Unknown.STOPS, gap_s_max=5.0) is None
    assert holds([*looks, (22.0, True)], Unknown.STOPS, gap_s_max=5.0) is True
    assert holds(looks, Unknown.STOPS) is True


RULE = Rule[int | None](
    kind=PCIE,
    raise_if=lambda lanes: None if lanes is None else lanes < 16,
    says=lambda lanes: f"{lanes} lanes",
    over=lambda lanes: "all lanes again",
    raise_after_s=3.0,
    clear_after_s=60.0,
)


def test_a_condition_says_what_raised_it_until_its_rule_clears_it() -> None:
    book = ConditionBook()
    for now, lanes in ((0.0, 8), (2.0, 8)):
        book.judge(RULE, lanes, now, gpu="GPU-a")
    assert book.report(2.0) == ()
    for now, lanes in ((3.0, 4), (4.0, 16), (5.0, None)):
        book.judge(RULE, lanes, now, gpu="GPU-a")
        (raised,) = book.report(now)
        assert (raised.state, raised.says, raised.age_s) == (ConditionState.RAISED, "4 lanes", now - 3.0)
    for now in (6.0, 70.0):
        book.judge(RULE, 16, now, gpu="GPU-a")
    (cleared,) = book.report(70.0)
    assert (cleared.state, cleared.says, cleared.gpu) == (ConditionState.CLEARED, "all lanes again", "GPU-a")


def test_parts_are_judged_apart() -> None:
    book = ConditionBook()
    for now in (0.0, 3.0):
        book.judge(RULE, 8, now, gpu="GPU-a")
        book.judge(RULE, 16, now, gpu="GPU-b")
    assert [each.gpu for each in book.report(3.0)] == ["GPU-a"]
