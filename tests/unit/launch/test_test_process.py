from collections.abc import Mapping
from pathlib import Path

import pytest

from holdfast.agent.launch.localset import StartTest
from holdfast.agent.launch.processes import TestProcess
from holdfast.api.bitflip import CORRUPTIBLE_VARIABLE
from holdfast.api.drill import DRILL_FILE
from holdfast.api.selftest import GOLDEN_VARIABLE, TestLevel, TestWanted


def takes_drill(folder: Path, environment: Mapping[str, str]) -> bool:
    start = StartTest(-1, TestWanted(1, TestLevel.LIGHT, "preflight"))
    return (
        str(folder / DRILL_FILE) in TestProcess(folder, folder, "a", "10.0.0.1").request(start, environment).argv
    )


@pytest.mark.parametrize("environment", [{}, {CORRUPTIBLE_VARIABLE: ""}])
def test_a_drill_that_was_left_behind_is_not_taken(tmp_path: Path, environment: Mapping[str, str]) -> None:
    (tmp_path / DRILL_FILE).write_text("{}")
    assert not takes_drill(tmp_path, environment)


def test_a_drill_is_taken_where_corruption_is_allowed(tmp_path: Path) -> None:
    armed = {CORRUPTIBLE_VARIABLE: "1"}
    assert not takes_drill(tmp_path, armed)
    (tmp_path / DRILL_FILE).write_text("{}")
    assert takes_drill(tmp_path, armed)


def test_results_are_compared_with_the_golden_table_that_the_environment_names(tmp_path: Path) -> None:
    start = StartTest(-1, TestWanted(1, TestLevel.LIGHT, "preflight"))
    process = TestProcess(tmp_path, tmp_path, "a", "10.0.0.1")
    assert process.request(start, {GOLDEN_VARIABLE: "/golden.json"}).argv[-2:] == ("--golden", "/golden.json")
    assert "--golden" not in process.request(start, {}).argv
