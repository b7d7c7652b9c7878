from pathlib import Path

import pytest
from checkpoint_ranks import Course, run_ranks

pytestmark = pytest.mark.long


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("step-*"))


@pytest.mark.parametrize("layout", ["fsdp", "ddp"])
def test_a_resumed_loss_curve_is_bit_equal_to_one_never_interrupted(layout: str, tmp_path: Path) -> None:
    whole = run_ranks(Course(tmp_path / "whole", until=8, layout=layout), 2)
    first = run_ranks(Course(tmp_path / "cut", until=3, layout=layout), 2)
    second = run_ranks(Course(tmp_path / "cut", until=8, layout=layout), 2)
    for rank in range(2):
        assert first[rank].losses + second[rank].losses == whole[rank].losses
        assert second[rank].digest == whole[rank].digest
        assert second[rank].noise == whole[rank].noise
        assert second[rank].stock_digest == whole[rank].digest
    assert whole[0].noise != whole[1].noise
    assert names(tmp_path / "cut") == ["step-00000004", "step-00000006", "step-00000008"]


def test_state_survives_every_change_of_size_bit_by_bit(tmp_path: Path) -> None:
    saved = run_ranks(Course(tmp_path, until=3), 4)
    for world_size in (2, 4, 1, 2):
        loaded = run_ranks(Course(tmp_path, until=3), world_size)
        assert {report.digest for report in loaded} == {saved[0].digest}
        assert {report.stock_digest for report in loaded} == {saved[0].digest}
        assert {report.losses for report in loaded} == {()}


def test_a_world_of_another_size_goes_on_with_the_next_samples(tmp_path: Path) -> None:
    run_ranks(Course(tmp_path, until=2), 2)
    grown = run_ranks(Course(tmp_path, until=4), 4)
    assert [step for step, _ in grown[0].losses] == [3, 4]
    assert len({report.noise for report in grown}) == 4, "every rank has random numbers of its own"
    again = run_ranks(Course(tmp_path, until=5), 4)
    shrunk = run_ranks(Course(tmp_path, until=6), 1)
    assert [step for step, _ in again[0].losses + shrunk[0].losses] == [5, 6]


def test_a_rank_that_cannot_read_now_keeps_every_rank_from_giving_up_what_is_good(tmp_path: Path) -> None:
    run_ranks(Course(tmp_path, until=2), 2)
    refusals = {report.refusal for report in run_ranks(Course(tmp_path, until=4, stale_rank=1), 2)}
    assert len(refusals) == 1
    assert refusals.pop().startswith("rank 1: step-00000002 cannot be read: ")
    assert names(tmp_path) == ["step-00000002"]


@pytest.mark.parametrize(
    ("point", "rank"),
    [
        ("staged", 0),
        ("staged", 1),
        ("file-written", 0),
        ("file-written", 1),
        ("manifest-written", 0),
        ("before-rename", 0),
        ("after-rename", 0),
    ],
)
def test_a_death_in_the_middle_of_a_save_leaves_the_newest_good_one(point: str, rank: int, tmp_path: Path) -> None:
    reports = run_ranks(Course(tmp_path, until=6, deaths={rank: (point, 1)}), 2)
    assert reports[rank] is None
    survivor = run_ranks(Course(tmp_path, until=5), 2)
    begun_at = survivor[0].losses[0][0]
    assert begun_at == (5 if point == "after-rename" else 3)
    assert survivor[0].skipped == ()
    assert survivor[0].stock_digest == survivor[0].digest
    assert not [name for name in names(tmp_path) if "." in name], "what the dead left is cleared away"
