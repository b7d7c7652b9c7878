"""Runs that seed torch alone, each trained twice, in processes of their own: their generators begin otherwise."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from patience import patient

from holdfast.cli.main import answer

pytestmark = pytest.mark.long

SCRIPT = Path(__file__).with_name("unseeded.py")


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("unseeded")
    for name in ("a", "b"):
        subprocess.run([sys.executable, str(SCRIPT), str(root / name)], check=True, timeout=patient(120))
    return root / "a", root / "b"


def compared(
    twice: tuple[Path, Path], run: str, capsys: pytest.CaptureFixture[str]
) -> tuple[int, Mapping[str, Any]]:
    code = answer(["compare", *(str(each / run) for each in twice), "-o", "json"])
    return code, json.loads(capsys.readouterr().out)["checkpoints"]


@pytest.mark.parametrize("run", ["generator", "loader", "loop"])
def test_generators_that_nothing_draws_from_are_no_difference(
    run: str, twice: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = compared(twice, run, capsys)
    assert (code, found["differs"], found["names"]) == (0, None, [])
    assert found["equal"] == found["common"][-1]
    told = {each["generator"]: each["drawn"] for each in found["generators"]}
    assert told == {"python of rank 0": "not drawn from", "numpy of rank 0": "not drawn from"}


def test_a_generator_that_is_drawn_from_is_a_difference_and_is_named(
    twice: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = compared(twice, "drawing", capsys)
    assert (code, found["differs"], found["names"]) == (1, 2, ["random.rank-00000.python"])
    assert {"generator": "python of rank 0", "step": 2, "drawn": "drawn from"} in found["generators"]
    answer(["compare", *(str(each / "drawing") for each in twice)])
    assert "seed it, for two runs to be alike" in capsys.readouterr().out
