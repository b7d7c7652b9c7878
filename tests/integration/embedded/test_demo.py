"""The first command of the README, from the wheel: four faults, each healed, and a table of what each cost."""

import subprocess
import sysconfig
from pathlib import Path

import pytest
from embeddedrun import PATIENCE_S
from installed_wheel import installed_wheel

pytestmark = pytest.mark.long

STEPS = 100


@pytest.mark.timeout(400)
def test_the_demo_breaks_its_run_four_ways_and_each_is_healed(tmp_path: Path) -> None:
    programs = installed_wheel(tmp_path)
    text, empty = tmp_path / "text", tmp_path / "empty"
    text.mkdir()
    empty.mkdir()
    (text / "one.txt").write_bytes((Path(sysconfig.get_paths()["stdlib"]) / "argparse.py").read_bytes())
    ended = subprocess.run(
        [programs / "holdfast", "demo", "--plain", "--steps", str(STEPS), "--text", text],
        cwd=empty,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for fault in ("kill-worker of rank 1", "kill-node of rank 1", "stop-worker of rank 1", "xid 79 of rank 1"):
        assert f"injecting: {fault}" in ended.stderr
    assert "default/demo succeeded" in ended.stderr
    heading, *rows = ended.stdout.splitlines()
    assert heading.split()[:3] == ["INCIDENT", "KIND", "CULPRIT"]
    assert [row.split()[1] for row in rows] == ["ProcessExit", "MemberLost", "Hang", "Xid"]
    assert [row.split()[-1] for row in rows] == ["Recovered"] * 4
    assert [path.name for path in empty.iterdir()] == [".holdfast"], "where it was started, and nowhere else"
