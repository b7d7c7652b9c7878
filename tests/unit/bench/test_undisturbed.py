"""What the bench of disturbed jobs calls a difference."""

import json
from pathlib import Path

import pytest
from undisturbed import Lines, unlike

MADE = [[1, 0, [4, 7], "0x1.8p+0"], [2, 0, [1, 9], "0x1.4p+0"]]


def lines(folder: Path, *more: list[object], rest: str = "") -> Lines:
    """Of two ranks, the first of which made `more` after what both made."""
    folder.mkdir()
    for rank in range(2):
        made = [*MADE, *(more if rank == 0 else ())]
        (folder / f"rank-{rank}.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in made) + rest)
    return Lines.of(folder)


def test_a_step_that_is_made_again_alike_is_no_difference(tmp_path: Path) -> None:
    quiet = lines(tmp_path / "quiet")
    loud = lines(tmp_path / "loud", MADE[1], rest="[3, 0, [1")
    assert (unlike(loud.last, quiet.last), loud.wavered) == ([], 0)


@pytest.mark.parametrize(
    "made",
    [[2, 1, [1, 9], "0x1.4p+0"], [2, 0, [9, 1], "0x1.4p+0"], [2, 0, [1, 9], "0x1.40001p+0"]],
    ids=["epoch", "samples", "loss"],
)
def test_a_step_made_otherwise_differs_and_wavers(tmp_path: Path, made: list[object]) -> None:
    quiet, loud = lines(tmp_path / "quiet"), lines(tmp_path / "loud", made)
    assert (unlike(loud.last, quiet.last), loud.wavered) == (["rank 0, step 2"], 1)
    back = lines(tmp_path / "back", made, MADE[1])
    assert (unlike(back.last, quiet.last), back.wavered) == ([], 2), "what came in between was trained on"


def test_a_step_too_many_and_one_that_is_missing_differ(tmp_path: Path) -> None:
    quiet, loud = lines(tmp_path / "quiet"), lines(tmp_path / "loud", [3, 0, [2, 2], "0x1p+0"])
    assert unlike(loud.last, quiet.last) == unlike(quiet.last, loud.last) == ["rank 0, step 3"]
