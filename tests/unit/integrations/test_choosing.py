"""Which checkpoint of a framework a round goes on from: by the rules of our own."""

import pytest

from holdfast.api.checkpoint import Standing
from holdfast.api.errors import Damaged
from holdfast.api.round import Restore, Tier
from holdfast.integrations.choosing import behind, choice, common, owned, superseded, surplus
from holdfast.integrations.marks import Mark, Marked


def line(*steps: int, healthy: bool | None = True, owner: str = "") -> list[Marked]:
    return [Marked(f"checkpoint-{step}", Mark(step, 2, owner, healthy)) for step in steps]


def step_of(found: list[Marked], restore: Restore) -> int | None:
    chosen = choice(found, restore)
    return None if chosen is None else chosen.step


def test_the_newest_that_the_job_allows_is_chosen() -> None:
    found = line(30, 20, 10)
    assert step_of(found, Restore(Tier.CHECKPOINT)) == 30
    assert step_of(found, Restore(Tier.CHECKPOINT, step=25)) == 20
    assert step_of(found, Restore(Tier.CHECKPOINT, unhealthy_from=20)) == 10
    assert step_of(found, Restore(Tier.CHECKPOINT, step=5, otherwise=15)) == 10


def test_who_starts_over_takes_none_and_who_has_none_begins_afresh() -> None:
    assert step_of(line(30), Restore(Tier.NONE)) is None
    assert step_of([], Restore(Tier.CHECKPOINT)) is None
    assert step_of(line(30), Restore(Tier.CHECKPOINT, step=0)) is None


def test_one_that_was_not_finite_is_the_last_resort() -> None:
    found = [*line(30, healthy=False), *line(20)]
    assert step_of(found, Restore(Tier.CHECKPOINT)) == 20
    assert step_of(found[:1], Restore(Tier.CHECKPOINT)) == 30


def test_nobody_starts_over_without_being_told() -> None:
    with pytest.raises(Damaged, match="up to step 15"):
        choice(line(30, 20), Restore(Tier.CHECKPOINT, step=15))
    with pytest.raises(Damaged, match="healthy before step 5"):
        choice(line(30, 20), Restore(Tier.CHECKPOINT, unhealthy_from=5))


def test_only_what_every_rank_found_counts() -> None:
    assert [each.step for each in common([line(30, 20, 10), line(20, 10), line(30, 20)])] == [20]


def test_what_lies_behind_and_what_this_life_saved() -> None:
    found = [*line(30, owner="now"), *line(20, owner="before")]
    assert [each.step for each in behind(found, 20)] == [30]
    assert [each.step for each in owned(found, "now")] == [30]
    assert owned(found, "") == []


def test_the_newest_stay_and_the_newest_that_a_rewind_would_take() -> None:
    found = line(50, 40, 30, 20, 10)
    assert [each.step for each in superseded(found, 2, Standing())] == [30, 20, 10]
    assert [each.step for each in superseded(found, 2, Standing(unhealthy_from=25))] == [30, 10]
    assert [each.step for each in superseded(found, 2, Standing(verified=10))] == [30, 20]


def test_a_framework_s_limit_deletes_the_oldest_that_nobody_needs() -> None:
    names = ["a", "b", "c", "d"]
    assert surplus(names, 2, {"d"}) == ["a", "b"]
    assert surplus(names, 1, {"b", "d"}) == ["a", "c"]
    assert surplus(names, 4, set()) == []
    assert [surplus(names, limit, set()) for limit in (None, 0, -1)] == [[], [], []]
