import errno
import time
from pathlib import Path

import pytest

from holdfast.api.disturbance import (
    Ailment,
    Disturbance,
    disturbance_file,
    request_disturbance,
    take_disturbance,
)
from holdfast.trainer.drill import Drill


@pytest.fixture
def broken() -> list[str]:
    return []


@pytest.fixture
def drill(tmp_path: Path, broken: list[str]) -> Drill:
    return Drill(tmp_path, 1, break_connections=lambda: broken.append("broken"))


def ask(folder: Path, ailment: Ailment, **fields: float) -> None:
    request_disturbance(folder, Disturbance(ailment, 1, **fields))  # type: ignore[arg-type]


def test_a_rank_of_which_nothing_is_asked_suffers_nothing(drill: Drill, tmp_path: Path) -> None:
    request_disturbance(tmp_path, Disturbance(Ailment.SPIKE, rank=0))
    assert drill.step(1, 0.5, 2.0) == (0.5, 2.0)
    assert drill.batch("a") == "a"
    drill.write()


def test_a_request_is_taken_once_and_lasts_for_its_steps(drill: Drill, tmp_path: Path) -> None:
    ask(tmp_path, Ailment.SPIKE, steps=2, times=10.0)
    assert [drill.step(step, 0.5, 2.0) for step in (1, 2, 3)] == [(5.0, 2.0), (5.0, 2.0), (0.5, 2.0)]
    assert not disturbance_file(tmp_path, Ailment.SPIKE, 1).exists()


def test_a_request_that_needs_a_loss_is_left_where_there_is_none(drill: Drill, tmp_path: Path) -> None:
    ask(tmp_path, Ailment.SPIKE)
    assert drill.step(1, None, None) == (None, None)
    assert len(list(tmp_path.iterdir())) == 1


def test_the_batch_before_is_given_again(drill: Drill, tmp_path: Path) -> None:
    assert drill.batch("a") == "a"
    ask(tmp_path, Ailment.WRONG_DATA, steps=2)
    assert [drill.batch(each) for each in ("b", "c", "d")] == ["a", "a", "d"]


def test_nothing_can_be_written_while_the_disk_plays_full(drill: Drill, tmp_path: Path) -> None:
    ask(tmp_path, Ailment.FULL_DISK, steps=2)
    drill.step(1, 0.5, None)
    assert disturbance_file(tmp_path, Ailment.FULL_DISK, 1).exists()  # nobody saves here
    drill.saves_here()
    drill.step(2, 0.5, None)
    with pytest.raises(OSError, match="No space left") as full:
        drill.write()
    assert full.value.errno == errno.ENOSPC
    drill.step(3, 0.5, None)
    drill.write()


def test_it_raises_breaks_and_is_slow_when_asked(drill: Drill, tmp_path: Path, broken: list[str]) -> None:
    ask(tmp_path, Ailment.BREAK_COLLECTIVE)
    ask(tmp_path, Ailment.SLOW, seconds=0.01)
    began, ran = time.monotonic(), time.thread_time()
    drill.step(1, 0.5, None)
    assert time.monotonic() - began >= 0.01
    assert time.thread_time() > ran + 0.001, "who sleeps seems to wait for the others"
    assert broken == ["broken"]
    ask(tmp_path, Ailment.RAISE)
    with pytest.raises(RuntimeError, match="raised on request after step 2"):
        drill.step(2, 0.5, None)
    assert drill.step(3, 0.5, None) == (0.5, None)


def test_a_request_that_is_not_understood_asks_for_nothing(tmp_path: Path) -> None:
    disturbance_file(tmp_path, Ailment.SLOW, 1).write_text("{}")
    assert take_disturbance(tmp_path, Ailment.SLOW, 1) is None
