"""The killer, for a moment: what the watchdog and a process that saves acknowledged is there after a SIGKILL.

`make bench NAME=kills` kills 200 and 60 times.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from patience import patient

pytestmark = pytest.mark.long

BENCH = Path(__file__).parents[3] / "bench" / "kills.py"


@pytest.mark.timeout(300)
def test_nothing_acknowledged_is_lost_or_answered_otherwise(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCH), "--watchdogs", "12", "--savers", "5", "--output", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=patient(280))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    figures = json.loads((tmp_path / "kills.json").read_text())
    assert len(figures) == 4
    assert [each["ours"] for each in figures] == [0] * 4, ended.stdout
