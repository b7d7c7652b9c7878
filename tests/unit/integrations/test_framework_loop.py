"""A loop over an engine that saves itself: it goes on behind what was saved, and saves the last step."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.api.errors import InvalidInput
from holdfast.checkpoint.foreign import ForeignCheckpoints
from holdfast.integrations.frameworkloop import FrameworkLoop
from holdfast.trainer import guest


class Engine:
    """Counts, and keeps the count in a file."""

    def __init__(self) -> None:
        self.count = 0

    def save(self, folder: Path) -> None:
        (folder / "count").write_text(str(self.count))

    def load(self, folder: Path) -> None:
        self.count = int((folder / "count").read_text())


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("RANK", "HOLDFAST_CONTROL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(guest._Guest, "run", None)
    yield
    if guest._Guest.run is not None:
        guest._Guest.run._side.close()


def steps_of(engine: Engine, folder: Path, *, until: int, dies_in: int | None = None) -> list[int]:
    loop = FrameworkLoop(format="mine", save=engine.save, load=engine.load, uri=str(folder), every_steps=3)
    done = []
    for step in loop.steps(until=until):
        if step == dies_in:
            break
        engine.count += 1
        loop.measured(loss=1.0 / step, tokens=8)
        done.append(step)
    return done


def test_it_goes_on_behind_the_newest_one_that_was_saved_and_saves_the_last_step(tmp_path: Path) -> None:
    assert steps_of(Engine(), tmp_path, until=10, dies_in=6) == [1, 2, 3, 4, 5]
    engine = Engine()
    assert steps_of(engine, tmp_path, until=10) == [4, 5, 6, 7, 8, 9, 10]
    assert engine.count == 10
    assert steps_of(Engine(), tmp_path, until=10) == []


def test_what_was_measured_is_published_with_its_step(tmp_path: Path) -> None:
    engine = Engine()
    loop = FrameworkLoop(format="mine", save=engine.save, load=engine.load, uri=str(tmp_path))
    for _ in loop.steps(until=2):
        loop.measured(loss=float("nan"))
    assert loop.run.is_finite() is False
    (found,) = tmp_path.glob("step-*")
    assert found.name == "step-00000002"
    assert ForeignCheckpoints(loop.run, format="mine", uri=str(tmp_path)).restore() == found, (
        "the only one there is"
    )


def test_a_cadence_below_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="every_steps"):
        FrameworkLoop(format="mine", save=print, load=print, uri=str(tmp_path), every_steps=0)


def test_a_save_that_writes_nothing_where_it_is_told_makes_no_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It would be gone on from, and every new process would fail at loading it."""
    engine = Engine()
    engine.save = lambda folder: None  # type: ignore[method-assign]
    assert steps_of(engine, tmp_path, until=4) == [1, 2, 3, 4]
    assert "mine wrote no file into the folder that it was given" in caplog.text
    guest._Guest.run = None
    assert steps_of(Engine(), tmp_path, until=4) == [1, 2, 3, 4]
