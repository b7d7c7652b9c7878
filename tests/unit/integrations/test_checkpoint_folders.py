"""What stays of the checkpoints that a framework wrote for itself, when it deletes older ones."""

from pathlib import Path
from types import SimpleNamespace

from holdfast.api.checkpoint import Standing
from holdfast.integrations.checkpointfolders import CheckpointFolders
from holdfast.integrations.marks import Mark, begin_writing, write_mark

PREFIX = "checkpoint-"


def folders(directory: Path, standing: Standing, *steps: int) -> CheckpointFolders:
    for step in steps:
        folder = directory / f"{PREFIX}{step}"
        begin_writing(folder)
        (folder / "model.safetensors").write_bytes(b"1")
        write_mark(folder, Mark(step, 2, "life", healthy=True))
    run = SimpleNamespace(standing=lambda: standing)
    made = CheckpointFolders(run, directory, prefix=PREFIX, marks_here=True)  # type: ignore[arg-type]
    made.newest = steps[-1]
    return made


def there(directory: Path) -> list[int]:
    return sorted(int(each.name.removeprefix(PREFIX)) for each in directory.iterdir())


def test_the_newest_that_a_rewind_would_go_back_to_outlives_a_framework_s_limit(tmp_path: Path) -> None:
    made = folders(tmp_path, Standing(unhealthy_from=15), 5, 10, 15, 20, 25)
    made.rotate([f"{PREFIX}{step}" for step in (5, 10, 15, 20, 25)], 2, None)
    assert there(tmp_path) == [10, 25]


def test_what_is_the_best_and_what_was_just_saved_stay_and_unmarked_ones_go(tmp_path: Path) -> None:
    made = folders(tmp_path, Standing(), 5, 10, 20)
    (tmp_path / f"{PREFIX}30").mkdir()  # of a history that was given up
    made.rotate([f"{PREFIX}{step}" for step in (5, 10, 20, 30)], 1, f"{PREFIX}5")
    assert there(tmp_path) == [5, 20]


def test_without_a_limit_all_stay(tmp_path: Path) -> None:
    made = folders(tmp_path, Standing(), 5, 10)
    made.rotate([f"{PREFIX}5", f"{PREFIX}10"], None, None)
    assert there(tmp_path) == [5, 10]
