"""Which checkpoints stay and which are restored, by how they stand."""

import random

import pytest
from drawer import Drawer, manifest_of, put

from holdfast.api.checkpoint import Health, StoredCheckpoint, all_finite, health_of, restore_order
from holdfast.api.control import Assignment
from holdfast.api.round import Endpoint, Restore, Tier
from holdfast.checkpoint.capture.savegroup import SaveGroup
from holdfast.checkpoint.commit.discovery import Found, Unreadable
from holdfast.checkpoint.commit.folder import FolderCommits
from holdfast.checkpoint.commit.retention import Need, Retention, Why, Writer, judge
from holdfast.checkpoint.restore.opening import Opening, open_together


def undated(name: str) -> None:
    """The storage cannot tell when anything was committed."""


def line(*standing: tuple[int, bool | None], round: int = 1, parent: int | None = None) -> list[Found]:
    """(step, healthy)"""
    return [
        Found(f"step-{step:08d}", manifest_of(step, round=round, parent=parent, healthy=healthy))
        for step, healthy in standing
    ]


def kept(found: list[Found], retention: Retention) -> dict[int, list[str]]:
    verdict = judge(found, [], retention, undated)
    assert sorted([*verdict.kept, *verdict.doomed]) == sorted(each.name for each in found)
    return {int(name[5:]): [why.name for why in whys] for name, whys in verdict.kept.items()}


@pytest.mark.parametrize(
    ("step", "healthy", "unhealthy_from", "health"),
    [
        (4, True, None, Health.HEALTHY),
        (4, True, 5, Health.HEALTHY),
        (5, True, 5, Health.UNHEALTHY),
        (4, False, None, Health.UNHEALTHY),
        (4, None, None, Health.UNKNOWN),
        (4, None, 9, Health.UNKNOWN),
        (9, None, 9, Health.UNHEALTHY),
    ],
)
def test_unknown_is_never_healthy(
    step: int, healthy: bool | None, unhealthy_from: int | None, health: Health
) -> None:
    assert health_of(StoredCheckpoint(step, 1, "", healthy), unhealthy_from) is health


def test_a_restore_tries_what_was_not_finite_last_and_what_is_refused_never() -> None:
    newest_first = [StoredCheckpoint(step, 1, "", step not in (3, 5)) for step in (7, 6, 5, 4, 3, 2)]
    assert [each.step for each in restore_order(newest_first, None)] == [7, 6, 4, 2, 5, 3]
    assert [each.step for each in restore_order(newest_first, 6)] == [4, 2, 5, 3]
    assert restore_order(newest_first, 0) == []


def test_ranks_that_cannot_tell_leave_it_to_those_that_can() -> None:
    verdicts = {
        healthy: all_finite(healthy) for healthy in ((None, True, None), (True, False, None), (None, None))
    }
    assert list(verdicts.values()) == [True, False, None]


def test_the_newest_healthy_one_stays_whatever_keep_says() -> None:
    history = line((10, True), (20, True), (30, False), (40, None), (50, False))
    assert kept(history, Retention(1)) == {50: ["NEWEST"], 20: ["HEALTHY"]}
    assert kept(history, Retention(2)) == {50: ["NEWEST"], 40: ["NEWEST"], 20: ["HEALTHY"]}
    assert kept(history, Retention(1, unhealthy_from=20)) == {50: ["NEWEST"], 10: ["HEALTHY"]}
    assert kept(history[2:], Retention(1)) == {50: ["NEWEST"], 40: ["UNTOLD"]}, "the newest that may be healthy"
    assert kept(line((10, False), (20, False)), Retention(1)) == {20: ["NEWEST"]}


def test_a_verified_one_that_is_not_healthy_is_no_use() -> None:
    history = line((10, True), (20, True), (30, True), (40, True))
    assert kept(history, Retention(1, verified=35, unhealthy_from=25)) == {
        40: ["NEWEST"],
        20: ["HEALTHY", "VERIFIED"],
    }


def test_what_a_job_needs_and_whoever_prunes_asks_for_both_stay() -> None:
    history = line((10, True), (20, True), (30, True), (40, False))
    assert kept(history, Retention(1, also=Need(unhealthy_from=20))) == {
        40: ["NEWEST"],
        30: ["HEALTHY"],
        10: ["HEALTHY"],
    }


@pytest.mark.parametrize("seed", range(20))
def test_how_many_stay_is_bounded_whatever_happens_to_the_loss(seed: int) -> None:
    """At most `keep`, one more that is healthy, one more that is verified."""
    chance = random.Random(seed)
    keep, there, unhealthy_from, verified = chance.randint(1, 4), [], None, None
    for step in range(1, 200):
        if unhealthy_from is None and chance.random() < 0.02:
            unhealthy_from = step
        if chance.random() < 0.3:
            verified = max(verified or 0, step - chance.randint(0, 30))
        there += line((step, chance.choice((None, unhealthy_from is None))))
        retention = Retention(keep, verified=verified, unhealthy_from=unhealthy_from)
        stays = kept(there, retention)
        before = [health_of(each, unhealthy_from) for each in there]
        there = [each for each in there if each.step in stays]
        assert len(there) <= keep + 2
        after = [health_of(each, unhealthy_from) for each in there]
        assert (Health.HEALTHY in after) == (Health.HEALTHY in before)


def test_a_round_that_has_not_committed_keeps_what_it_has_restored() -> None:
    """It makes room for its first save on a full disk: the newest of the directory are those it gave up."""
    history = line((40, True), (50, False), (60, False))
    writer = Writer(2, 40)
    assert kept(history, Retention(1, writer=writer)) == {40: ["NEWEST", "HEALTHY"]}
    after = [*history, *line((45, True), round=2, parent=40)]
    assert kept(after, Retention(2, writer=writer)) == {45: ["NEWEST", "HEALTHY"], 40: ["NEWEST"]}
    afresh = judge(history, [], Retention(1, writer=Writer(2, None)), undated)
    assert (afresh.doomed, afresh.line) == ((), ()), "nothing goes before there is something else"


def test_an_unreadable_one_is_kept_as_evidence_and_says_so() -> None:
    verdict = judge(line((8, True)), [Unreadable("step-00000012", "cut")], Retention(1), undated)
    assert verdict.kept == {"step-00000008": (Why.NEWEST, Why.HEALTHY), "step-00000012": (Why.EVIDENCE,)}


def test_what_stays_is_said_by_whoever_deletes_and_left_for_whoever_deletes_by_hand() -> None:
    drawer = Drawer()
    for step in (10, 20, 30):
        put(drawer, f"step-{step:08d}", manifest_of(step, healthy=step < 20))
    FolderCommits(drawer).enter(owner="", round=7)
    retention = Retention(1, unhealthy_from=15)
    line = FolderCommits(drawer).retire(retention, round=7, token="aa", need=retention.need)
    assert [each.step for each in line] == [30, 10]
    assert FolderCommits(drawer).entered().need == Need(0, None, 15, 1)


def opened(drawer: Drawer, **restore: int) -> Opening:
    drawer.commits = FolderCommits(drawer)  # type: ignore[attr-defined]
    told = Restore(Tier.CHECKPOINT, owner="life", **restore)  # type: ignore[arg-type]
    part = Assignment("job", 3, 0, 0, 1, 1, Endpoint("", 0), told, "")
    return open_together(drawer, SaveGroup(part), round=3, restore=told)  # type: ignore[arg-type]


def test_an_opening_lists_what_may_be_restored_and_says_what_may_not() -> None:
    drawer = Drawer()
    for step, healthy in ((10, True), (20, True), (30, False), (40, None), (50, True)):
        put(drawer, f"step-{step:08d}", manifest_of(step, healthy=healthy))
    plain = opened(drawer)
    assert [name[-2:] for name in plain.candidates] == ["50", "40", "20", "10", "30"]
    assert plain.last_resort == (("step-00000030", 30),)
    assert plain.unreadable == ()
    told = opened(drawer, unhealthy_from=35)
    assert [name[-2:] for name in told.candidates] == ["20", "10", "30"]
    assert told.unreadable[0] == "step-00000050: not healthy, as nothing is from step 35 on"
    assert (told.newest, [each.step for each in told.line]) == ((1, 20), [50, 40, 30, 20, 10])
    assert opened(drawer, unhealthy_from=5).candidates == ()


def test_what_is_to_be_gone_on_from_otherwise_comes_after_all_that_was_asked_for() -> None:
    drawer = Drawer()
    for step in (20, 40, 50):
        put(drawer, f"step-{step:08d}", manifest_of(step, healthy=True))
    told = opened(drawer, step=21, otherwise=45)
    assert [name[-2:] for name in told.candidates] == ["20", "40"]
    assert [each.step for each in told.line] == [40, 20]
    assert [name[-2:] for name in opened(drawer, step=19, otherwise=45).candidates] == ["40", "20"]
