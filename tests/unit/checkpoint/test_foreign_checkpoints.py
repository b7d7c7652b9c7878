"""A framework's own files become a checkpoint as a whole or not at all, and only whole ones are gone back to."""

from pathlib import Path

import msgspec
import pytest

from holdfast.api.errors import Damaged, InvalidInput
from holdfast.api.round import Restore, Tier
from holdfast.checkpoint import NothingToRestore, SavingStopped, Standalone
from holdfast.checkpoint.commit.verification import verify
from holdfast.checkpoint.foreign import ForeignCheckpoints, files_below
from holdfast.checkpoint.format import manifest
from holdfast.checkpoint.storage.local import LocalStorage


def writing(content: str):
    """What a framework writes: a file, and one in a folder of its own."""

    def write(folder: Path) -> None:
        (folder / "state.ckpt").write_text(content)
        (folder / "shards").mkdir()
        (folder / "shards" / "__0_0.distcp").write_text(2 * content)

    return write


def opened(folder: Path, *, restore: Restore | None = None, round: int = 0, keep: int = 3) -> ForeignCheckpoints:
    run = Standalone(str(folder), round=round, restore=restore)
    return ForeignCheckpoints(run, format="mine", keep=keep)


def saved(folder: Path, *steps: int) -> ForeignCheckpoints:
    checkpoints = opened(folder)
    assert checkpoints.restore() is None
    for step in steps:
        assert checkpoints.save(step, writing(f"step {step}"))
    return checkpoints


def committed(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.glob("step-*"))


def test_what_was_written_is_found_again_file_by_file(tmp_path: Path) -> None:
    saved(tmp_path, 5, 10)
    again = opened(tmp_path, round=1)
    found = again.restore()
    assert found is not None
    assert (again.restored_step, again.saved_world_size) == (10, 1)
    assert (found / "state.ckpt").read_text() == "step 10"
    assert (found / "shards" / "__0_0.distcp").read_text() == "step 10step 10"


def test_old_ones_are_deleted_and_readers_see_whole_ones_only(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2, 3, 4, 5)
    assert committed(tmp_path) == ["step-00000003", "step-00000004", "step-00000005"]
    storage = LocalStorage(tmp_path)
    assert all(verify(storage, name).is_intact for name in committed(tmp_path))


@pytest.mark.parametrize("file", ["state.ckpt", "shards/__0_0.distcp", "framework.json"])
def test_one_that_was_damaged_is_passed_over_for_the_one_before(tmp_path: Path, file: str) -> None:
    saved(tmp_path, 5, 10)
    (tmp_path / "step-00000010" / file).write_bytes(b"x" * (tmp_path / "step-00000010" / file).stat().st_size)
    assert not verify(LocalStorage(tmp_path), "step-00000010").is_intact
    again = opened(tmp_path, round=1)
    found = again.restore()
    assert found is not None
    assert found.name == "step-00000005"


def test_nothing_starts_over_unasked_where_none_can_be_used(tmp_path: Path) -> None:
    saved(tmp_path, 5)
    (tmp_path / "step-00000005" / "state.ckpt").write_text("other!")
    with pytest.raises(NothingToRestore, match="differs from what was written"):
        opened(tmp_path, round=1).restore()
    assert opened(tmp_path, restore=Restore(tier=Tier.NONE, uri=str(tmp_path)), round=2).restore() is None


def test_one_of_another_framework_is_not_handed_to_this_one(tmp_path: Path) -> None:
    saved(tmp_path, 5)
    other = ForeignCheckpoints(Standalone(str(tmp_path), round=1), format="another")
    with pytest.raises(NothingToRestore, match="it is one of mine, not of another"):
        other.restore()


def test_a_round_that_goes_back_takes_the_newest_up_to_its_step_and_gives_the_later_ones_up(
    tmp_path: Path,
) -> None:
    saved(tmp_path, 5, 10)
    back = opened(tmp_path, restore=Restore(Tier.CHECKPOINT, step=7, uri=str(tmp_path)), round=3)
    found = back.restore()
    assert found is not None
    assert found.name == "step-00000005"
    assert back.save(6, writing("another history"))
    assert committed(tmp_path) == ["step-00000005", "step-00000006"]


def test_a_save_that_fails_leaves_nothing_and_three_in_a_row_end_the_training(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 5)

    def failing(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise OSError("the quota is used up")

    assert not checkpoints.save(6, failing)
    assert committed(tmp_path) == ["step-00000005"]
    assert checkpoints.save(7, writing("again"))
    assert not checkpoints.save(8, failing)
    assert not checkpoints.save(9, failing)
    with pytest.raises(SavingStopped, match="rank 0: OSError: the quota is used up"):
        checkpoints.save(10, failing)
    assert committed(tmp_path) == ["step-00000005", "step-00000007"]


def test_a_file_whose_name_no_reader_would_take_makes_no_checkpoint(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path)
    assert not checkpoints.save(5, lambda folder: (folder / "epoch=1.ckpt").write_text("state"))
    assert committed(tmp_path) == []


@pytest.mark.parametrize(
    ("uri", "told"), [("", "name a directory"), ("s3://bucket/place", "mine writes its checkpoints to paths")]
)
def test_a_place_that_has_no_paths_is_refused(uri: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "nowhere-1")
    with pytest.raises(InvalidInput, match=told):
        ForeignCheckpoints(Standalone(uri), format="mine")


def test_keep_is_at_least_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="keep"):
        opened(tmp_path, keep=0)


def test_files_are_found_below_folders_too(tmp_path: Path) -> None:
    writing("x")(tmp_path)
    assert files_below(tmp_path) == ["shards/__0_0.distcp", "state.ckpt"]


@pytest.mark.parametrize("name", ["../other", "a/../../b", "/etc/x", "a//b", "a/.", ".", "a/b/c/d/e/f/g/h/i", ""])
def test_a_manifest_names_nothing_outside_of_its_folder(name: str) -> None:
    record = manifest.record_of([memoryview(b"x")])
    whole = manifest.Manifest(
        format=manifest.FORMAT, step=1, round=0, parent=None, world_size=1, batches=0, files={name: record}
    )
    with pytest.raises(Damaged):
        manifest.decode(manifest.encode(whole))


def test_a_manifest_may_name_what_is_in_folders_of_its_own() -> None:
    record = manifest.record_of([memoryview(b"x")])
    whole = manifest.Manifest(
        format=manifest.FORMAT, step=1, round=0, parent=None, world_size=1, batches=0, files={"a/b/.c": record}
    )
    assert manifest.decode(manifest.encode(whole)) == whole
    assert msgspec.json.decode(manifest.encode(whole))["body"]["files"].keys() == {"a/b/.c"}
