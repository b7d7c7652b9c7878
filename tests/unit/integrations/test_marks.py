"""A framework's folder counts as a checkpoint when every rank was done with it, and as nothing before."""

import shutil
from pathlib import Path

import pytest

from holdfast.api.errors import Damaged
from holdfast.integrations.marks import Mark, begin_writing, give_up, listing, read_mark, write_mark

PREFIX = "checkpoint-"


def saved(directory: Path, step: int, **more: object) -> Path:
    folder = directory / f"{PREFIX}{step}"
    begin_writing(folder)
    (folder / "part").mkdir(exist_ok=True)
    (folder / "part" / "model.bin").write_bytes(b"x" * step)
    write_mark(folder, Mark(step, 2, **more))  # type: ignore[arg-type]
    return folder


def test_what_is_marked_is_found_newest_first_with_what_the_mark_says(tmp_path: Path) -> None:
    saved(tmp_path, 9)
    saved(tmp_path, 10, owner="life", healthy=True, place={"epoch": 1})
    found = listing(tmp_path, PREFIX).complete
    assert [each.step for each in found] == [10, 9]
    assert (found[0].mark.owner, found[0].healthy, found[0].mark.place) == ("life", True, {"epoch": 1})
    assert found[0].mark.files == {"part/model.bin": 10}


def test_a_folder_that_is_being_written_is_not_complete(tmp_path: Path) -> None:
    begin_writing(tmp_path / "checkpoint-5")
    (tmp_path / "checkpoint-5" / "model.bin").write_bytes(b"half")
    found = listing(tmp_path, PREFIX)
    assert (found.complete, found.unknown) == ((), ())
    assert "cut short" in found.incomplete[0]


def test_one_that_is_written_anew_is_not_complete_meanwhile(tmp_path: Path) -> None:
    begin_writing(saved(tmp_path, 5))
    assert listing(tmp_path, PREFIX).complete == ()


def test_one_that_was_given_up_stays_in_its_place_and_does_not_count(tmp_path: Path) -> None:
    folder = saved(tmp_path, 5)
    give_up(folder)
    assert listing(tmp_path, PREFIX).complete == ()
    assert (folder / "part" / "model.bin").exists()


def test_a_file_that_is_gone_or_shorter_than_it_was_is_named(tmp_path: Path) -> None:
    folder = saved(tmp_path, 5)
    (folder / "part" / "model.bin").write_bytes(b"x")
    with pytest.raises(Damaged, match=r"part/model\.bin is not there with its 5 bytes"):
        read_mark(folder)
    (folder / "part" / "model.bin").unlink()
    with pytest.raises(Damaged, match=r"part/model\.bin"):
        read_mark(folder)


def test_a_mark_that_cannot_be_read_marks_nothing(tmp_path: Path) -> None:
    (saved(tmp_path, 5) / "holdfast.json").write_text("{")
    assert "cannot be read" in listing(tmp_path, PREFIX).incomplete[0]


def test_folders_of_somebody_who_knows_no_marks_are_told_apart(tmp_path: Path) -> None:
    for name in ("checkpoint-3", "checkpoint-20", "checkpoint-best", "other-4"):
        (tmp_path / name).mkdir()
    assert listing(tmp_path, PREFIX).unknown == (20, 3)


def test_no_directory_holds_nothing(tmp_path: Path) -> None:
    assert listing(tmp_path / "none", PREFIX).complete == ()


def test_a_copy_under_another_step_is_passed_over(tmp_path: Path) -> None:
    """Its step would be gone on from in a folder that is not there."""
    shutil.copytree(saved(tmp_path, 5), tmp_path / "checkpoint-9")
    saved(tmp_path, 7).rename(tmp_path / "checkpoint-007")
    found = listing(tmp_path, PREFIX)
    assert [each.name for each in found.complete] == ["checkpoint-5"]
    assert all("a copy, or renamed" in each for each in found.incomplete)


def test_a_mark_of_nothing_makes_no_checkpoint(tmp_path: Path) -> None:
    begin_writing(tmp_path / "checkpoint-5")
    write_mark(tmp_path / "checkpoint-5", Mark(5, 2))
    assert listing(tmp_path, PREFIX).complete == ()
