"""The first command of the README: four faults, each healed, and a table of what each cost."""

import sysconfig
from pathlib import Path

import pytest
from embeddedrun import holdfast

STEPS = 100


@pytest.mark.timeout(300)
def test_the_demo_breaks_its_run_four_ways_and_each_is_healed(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.mkdir()
    (text / "one.txt").write_bytes((Path(sysconfig.get_paths()["stdlib"]) / "argparse.py").read_bytes())
    ended = holdfast(
        *("demo", "--plain", "--steps", str(STEPS), "--text", text, "--state-dir", tmp_path / "state")
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for fault in ("kill-worker of rank 1", "kill-node of rank 1", "stop-worker of rank 1", "xid 79 of rank 1"):
        assert f"injecting: {fault}" in ended.stderr
    assert "default/demo succeeded" in ended.stderr
    heading, *rows = ended.stdout.splitlines()
    assert heading.split()[:3] == ["INCIDENT", "KIND", "CULPRIT"]
    assert [row.split()[1] for row in rows] == ["ProcessExit", "MemberLost", "Hang", "Xid"]
    assert [row.split()[-1] for row in rows] == ["Recovered"] * 4
