"""The soak, for half a minute: what random faults leave behind, and whom they blame; the bench has 30 minutes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from patience import patient

pytestmark = pytest.mark.long

BENCH = Path(__file__).parents[3] / "bench" / "soak.py"


@pytest.mark.timeout(600)
def test_random_faults_are_healed_and_leave_nothing_and_blame_nobody_else(tmp_path: Path) -> None:
    schedule = ("--minutes", "0.5", "--every", "7", "--pace", "0.6")  # unpaced, it holds up the tests beside it
    command = [sys.executable, str(BENCH), *schedule, "--output", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=patient(580))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    figures = json.loads((tmp_path / "soak.json").read_text())
    assert len(figures) == 5
    assert [each["figure"] for each in figures if not each["met"]] == [], ended.stdout
