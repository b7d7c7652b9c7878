import contextlib
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_solo import FullDisk, Solo, StaleHandle, committed
from patience import patient
from recorder import Recorder

from holdfast.api.errors import Damaged, Fenced, Unavailable
from holdfast.api.learningrate import LearningRateCut
from holdfast.api.round import Restore, Tier
from holdfast.checkpoint import NothingToRestore, SavingStopped, Unfit

FILES = ("__0_0.distcp", ".metadata", "index.json", "manifest.json")
PLACES = 125  # In each file, for each kind of harm: 1,000 in all.
HOLE_BYTES = 4096


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("intact")
    Solo(directory).train(until=4)
    return directory


@pytest.fixture
def directory(intact: Path, tmp_path: Path) -> Path:
    shutil.copytree(intact, tmp_path / "copy")
    return tmp_path / "copy"


def newest(directory: Path) -> Path:
    return directory / "step-00000004"


def resume(directory: Path, **given: object) -> Solo:
    return Solo(directory, every_steps=None, **given).train(until=0)  # type: ignore[arg-type]


def restored(solo: Solo) -> int | None:
    ((step, _),) = solo.run.restores
    return step


def flip(path: Path, source: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[source.randrange(len(content))] ^= 1 << source.randrange(8)
    path.write_bytes(content)


def hole(path: Path, source: random.Random) -> None:
    """Zeros where a page of the disk should be, at any place where that makes a difference."""
    content = path.read_bytes()
    holed = content
    while holed == content:
        start = source.randrange(-HOLE_BYTES + 1, len(content))
        begin, end = max(start, 0), min(start + HOLE_BYTES, len(content))
        holed = content[:begin] + bytes(end - begin) + content[end:]
    path.write_bytes(holed)


def punch(path: Path, source: random.Random) -> None:
    content = bytearray(path.read_bytes())
    start = source.randrange(len(content) // 2)
    content[start : start + 64] = b"\0" * 64
    path.write_bytes(content[: path.stat().st_size])


def cut(path: Path, source: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: source.randrange(path.stat().st_size)])


def remove(path: Path, source: random.Random) -> None:
    path.unlink()


def extend(path: Path, source: random.Random) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("harm", [punch, cut, remove, extend])
def test_a_damaged_file_is_recognised_and_the_one_before_is_used(
    file: str, harm: Callable[[Path, random.Random], None], directory: Path
) -> None:
    harm(newest(directory) / file, random.Random(file))
    solo = resume(directory)
    ((step, skipped),) = solo.run.restores
    assert step == 3
    assert len(skipped) == 1
    assert skipped[0].startswith("step-00000004: ")


@pytest.mark.parametrize("harm", [flip, hole])
@pytest.mark.parametrize("file", FILES)
def test_damage_at_any_place_is_recognised_and_never_loaded(
    file: str, harm: Callable[[Path, random.Random], None], directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Recorder(directory).watch(monkeypatch)  # Nothing is really synced, which is slow.
    before = resume(directory, restore=Restore(tier=Tier.CHECKPOINT, step=3)).weights
    path = newest(directory) / file
    content = path.read_bytes()
    source = random.Random(file)
    for _ in range(PLACES):
        harm(path, source)
        solo = resume(directory)
        assert (restored(solo), solo.weights) == (3, before)
        path.write_bytes(content)
    assert restored(resume(directory)) == 4


def test_damage_leaves_no_trace_in_the_model(directory: Path) -> None:
    flip(newest(directory) / "__0_0.distcp", random.Random(1))
    assert resume(directory).weights == resume(directory, restore=Restore(tier=Tier.CHECKPOINT, step=3)).weights


def swap(one: Path, other: Path) -> None:
    """Each in the other's place."""
    beside = one.with_name("beside")
    one.rename(beside)
    other.rename(one)
    beside.rename(other)


def unseal(directory: Path) -> None:
    for name in committed(directory):
        flip(directory / name / "manifest.json", random.Random(name))


def swap_folders(directory: Path) -> None:
    first, second, third = (directory / name for name in committed(directory))
    swap(first, second)
    swap(first, third)


def swap_manifests(directory: Path) -> None:
    first, second, third = (directory / name / "manifest.json" for name in committed(directory))
    swap(first, second)
    swap(first, third)


def cut_indices(directory: Path) -> None:
    """Found out only when they are opened, one after the other."""
    for name in committed(directory):
        punch(directory / name / "index.json", random.Random(name))


@pytest.mark.parametrize("harm", [unseal, swap_folders, swap_manifests, cut_indices])
def test_where_checkpoints_are_there_and_none_can_be_used_nobody_starts_over_unasked(
    harm: Callable[[Path], None], directory: Path
) -> None:
    harm(directory)
    with pytest.raises(NothingToRestore, match=r"^checkpoints are there and none can be used: .*step-00000004: "):
        resume(directory)
    with pytest.raises(NothingToRestore, match=r"^no checkpoint up to step 4 can be restored: .*step-00000004: "):
        resume(directory, restore=Restore(tier=Tier.CHECKPOINT, step=4))
    assert committed(directory) == ["step-00000002", "step-00000003", "step-00000004"]
    for told in (Restore(tier=Tier.NONE), Restore(tier=Tier.MEMORY, step=0)):
        solo = resume(directory, restore=told)
        assert restored(solo) is None
        assert solo.weights == [0.5] * 4
        assert not solo.optimizer.state


def test_where_nothing_is_there_training_begins(tmp_path: Path) -> None:
    (tmp_path / "step-00000003.tmp-1-abcd").mkdir()
    (tmp_path / "notes").mkdir()
    assert restored(resume(tmp_path)) is None


def test_nobody_trains_on_from_what_damaged_checkpoints_left(directory: Path) -> None:
    for name in committed(directory):
        flip(directory / name / "__0_0.distcp", random.Random(name))
    with pytest.raises(NothingToRestore, match=r"step-00000004: rank 0: .* differs from what was written"):
        resume(directory)


@pytest.mark.parametrize("file", ["__0_0.distcp", "index.json", "manifest.json"])
def test_what_cannot_be_read_now_is_not_given_up(file: str, directory: Path) -> None:
    storage = StaleHandle(directory, file)
    with pytest.raises(Unavailable, match="Stale file handle"):
        Solo(directory, storage=storage, keep=1).train(until=1)
    assert committed(directory) == ["step-00000002", "step-00000003", "step-00000004"]
    storage.is_stale = False
    assert restored(resume(directory, storage=storage)) == 4


def test_a_file_where_a_checkpoint_should_be_is_passed_over(directory: Path) -> None:
    (directory / "step-00000009").write_bytes(b"")
    assert restored(resume(directory)) == 4


def test_a_restore_goes_no_higher_than_it_was_told(directory: Path) -> None:
    assert restored(resume(directory, restore=Restore(tier=Tier.CHECKPOINT, step=3))) == 3


def test_a_checkpoint_of_another_model_is_refused_by_name(directory: Path) -> None:
    solo = Solo(directory)
    solo.checkpointer.model = torch.nn.Linear(5, 1, bias=False)
    solo.checkpointer.optimizer = torch.optim.SGD(solo.checkpointer.model.parameters(), lr=0.1)
    with pytest.raises(Unfit, match=r"model.weight: the checkpoint has \[1, 4\] float32"):
        solo.train(until=1)


def test_a_damaged_checkpoint_is_replaced_when_its_step_is_trained_again(directory: Path) -> None:
    whole = resume(directory).weights
    flip(newest(directory) / "index.json", random.Random(1))
    assert Solo(directory).train(until=4).steps == [4]
    again = resume(directory)
    assert (restored(again), again.weights) == (4, whole)


def test_a_rewound_round_gives_up_what_came_after(directory: Path) -> None:
    back = Solo(directory, round=2, restore=Restore(tier=Tier.CHECKPOINT, step=2, skip_batches=7))
    assert back.train(until=3).steps == [3]
    assert committed(directory) == ["step-00000002", "step-00000003"]
    assert restored(resume(directory, round=3)) == 3


def test_a_skip_of_batches_and_a_smaller_learning_rate_are_done_once_and_kept(directory: Path) -> None:
    told = Restore(tier=Tier.CHECKPOINT, step=2, skip_batches=7, learning_rate_scale=0.5)
    solo = Solo(directory, round=2, restore=told)
    source = [torch.full((1, 4), float(number)) for number in range(20)]
    seen = [batch[0, 0].item() for _, batch in solo.checkpointer.steps(source, until=4)]
    assert seen == [9.0, 10.0]
    again = Solo(directory, round=3)
    seen = [batch[0, 0].item() for _, batch in again.checkpointer.steps(source, until=5)]
    assert seen == [11.0]
    assert again.optimizer.param_groups[0]["lr"] == 0.05


def test_a_learning_rate_that_is_cut_for_a_while_is_so_in_every_round_of_it(directory: Path) -> None:
    cuts = (LearningRateCut(0.5, after=2, until=6),)
    told = Restore(tier=Tier.CHECKPOINT, step=2, learning_rate_scale=0.5, learning_rate_cuts=cuts)
    source = [torch.full((1, 4), float(number)) for number in range(20)]
    rates = []
    for round, until in ((2, 4), (3, 6), (4, 8)):
        solo = Solo(directory, round=round, restore=told)
        for step, _ in solo.checkpointer.steps(source, until=until):
            rates.append((step, solo.optimizer.param_groups[0]["lr"]))
        told = Restore(tier=Tier.CHECKPOINT, learning_rate_cuts=cuts)
    assert rates == [(3, 0.05), (4, 0.05), (5, 0.05), (6, 0.05), (7, 0.1), (8, 0.1)]


def test_what_was_cut_in_the_history_that_is_given_up_is_not_cut_again(directory: Path) -> None:
    cuts = (LearningRateCut(0.5, after=2, until=6), LearningRateCut(0.25, after=2))
    told = Restore(Tier.CHECKPOINT, 2, learning_rate_scale=0.25, learning_rate_cuts=cuts, otherwise=3)
    solo = Solo(directory, round=2, restore=told).train(until=3)
    assert solo.optimizer.param_groups[0]["lr"] == 0.025


@pytest.mark.parametrize(
    ("told", "first"), [({"skip_until": 10}, 10.0), ({"skip_until": 1}, 2.0), ({"skip_batches": 7}, 9.0)]
)
def test_where_an_older_one_has_to_do_batches_are_skipped_up_to_a_step_or_so_many(
    directory: Path, told: dict[str, int], first: float
) -> None:
    flip(directory / "step-00000003" / "index.json", random.Random(1))
    solo = Solo(directory, round=2, restore=Restore(tier=Tier.CHECKPOINT, step=3, **told))
    source = [torch.full((1, 4), float(number)) for number in range(20)]
    seen = [(step, batch[0, 0].item()) for step, batch in solo.checkpointer.steps(source, until=4)]
    assert seen == [(3, first), (4, first + 1.0)]


def test_a_round_that_is_over_cannot_commit_any_more(directory: Path) -> None:
    stale = Solo(directory, round=7)
    loop = stale.checkpointer.steps([torch.zeros(1, 4)] * 20)
    next(loop)
    fresh = Solo(directory, round=8).train(until=6)
    next(loop)  # The save of the stale round's step 5 runs into the fence.
    with pytest.raises(Fenced, match="round 8 has entered"):
        for _ in loop:
            pass
    assert stale.run.commits == []
    assert [step for step, _, _ in fresh.run.commits] == [5, 6]
    with pytest.raises(Fenced):
        resume(directory, round=7)


def test_two_writers_of_one_round_leave_one_whole_checkpoint(tmp_path: Path) -> None:
    first, second = Solo(tmp_path, round=3), Solo(tmp_path, round=3)
    loops = [solo.checkpointer.steps([torch.zeros(1, 4)] * 4) for solo in (first, second)]
    for _ in range(5):
        for loop in loops:
            next(loop, None)
    assert [step for step, _, _ in first.run.commits] == [1, 2, 3, 4]
    assert [step for step, _, _ in second.run.commits] == [1, 2, 3, 4]
    assert restored(resume(tmp_path, round=4)) == 4
    assert committed(tmp_path) == ["step-00000002", "step-00000003", "step-00000004"]


def test_a_full_disk_fails_one_save_and_not_the_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = FullDisk(tmp_path)
    disk.failures = 2
    solo = Solo(tmp_path, storage=disk).train(until=4)
    assert solo.steps == [1, 2, 3, 4]
    assert [step for step, _, _ in solo.run.commits] == [3, 4]
    assert committed(tmp_path) == ["step-00000003", "step-00000004"]
    assert len(caplog.records) == 2


def test_a_disk_that_stays_full_stops_training_with_a_sentence_that_names_it(tmp_path: Path) -> None:
    disk = FullDisk(tmp_path)
    disk.failures = 99
    solo = Solo(tmp_path, storage=disk)
    with pytest.raises(SavingStopped, match=rf"3 checkpoints in a row .* full at {tmp_path.as_uri()} \(\d+ bytes"):
        solo.train(until=9)
    assert committed(tmp_path) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB, in memory."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    subprocess.run(command, check=True, timeout=patient(10))
    yield folder
    subprocess.run(["umount", str(folder)], check=True, timeout=patient(10))


@pytest.mark.needs("namespaces")
def test_a_disk_that_is_really_full_keeps_what_was_committed(small_disk: Path) -> None:
    whole = Solo(small_disk, round=1).train(until=1).weights
    filler = small_disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    with pytest.raises(SavingStopped, match=r"full at .* \(\d+ bytes needed, 0 free\)"):
        Solo(small_disk, round=1).train(until=9)
    with pytest.raises(Unavailable, match="No space left"):
        resume(small_disk, round=2)
    assert committed(small_disk) == ["step-00000001"]
    again = resume(small_disk, round=1)
    assert (restored(again), again.weights) == (1, whole)
    filler.unlink()
    assert Solo(small_disk, round=2).train(until=2).run.commits[0][0] == 2


def test_the_final_step_is_saved_even_when_it_takes_a_second_attempt(tmp_path: Path) -> None:
    disk = FullDisk(tmp_path)
    disk.failures = 1
    solo = Solo(tmp_path, storage=disk, every_steps=None).train(until=2)
    assert [step for step, _, _ in solo.run.commits] == [2]


def test_a_commit_is_reported_with_its_round_and_where_it_is(tmp_path: Path) -> None:
    solo = Solo(tmp_path, round=5, every_steps=2).train(until=2)
    assert solo.run.commits == [(2, f"{tmp_path.as_uri()}/step-00000002", 5)]


def test_a_fence_that_nobody_can_read_stops_the_round(directory: Path) -> None:
    (directory / "fence").write_bytes(b"\xff\n")
    with pytest.raises(Damaged, match="fence"):
        resume(directory)


def test_a_fence_that_is_damaged_after_a_commit_costs_nothing_of_it(tmp_path: Path) -> None:
    """Other ranks count the save: one that alone did not would wait for them for ever."""
    solo = Solo(tmp_path, round=1)
    told = solo.run.committed

    def committed_and_damaged(*about: Any, **more: Any) -> None:
        told(*about, **more)
        (tmp_path / "fence").write_bytes(b"\xff\n")

    solo.run.committed = committed_and_damaged  # type: ignore[method-assign]
    solo.train(until=1)
    assert [step for step, _, _ in solo.run.commits] == [1]
    assert committed(tmp_path) == ["step-00000001"]
