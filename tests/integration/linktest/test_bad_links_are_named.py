import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from patience import patient

BENCH = Path(__file__).parents[3] / "bench" / "links.py"
MODULE = (sys.executable, "-m", "holdfast.agent.linktest")
USAGE, UNKNOWN = 2, 3


@pytest.mark.needs("namespaces")
def test_a_slow_and_a_lossy_cable_among_eight_network_namespaces_are_named(tmp_path: Path) -> None:
    command = [sys.executable, BENCH, "--quick", "--seconds", "1", "--gang", "1", "--folder", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patient(120), check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "links.json").read_text())
    assert [each["figure"] for each in figures] == [
        "10 ms more, named among 8 nodes",
        "1 % lost, named among 8 nodes",
    ]
    # By what the links of a busy machine differ in most: the bench fails when it is not this node alone.
    assert len(re.findall(r"Failed in [0-9.]+ s: node n2: all [23] links bad", done.stdout)) == 2, done.stdout


def test_a_lead_whose_members_do_not_come_says_who_came() -> None:
    command = [*MODULE, "--wait", "0.5", "lead", "--nodes", "4", "--listen", "127.0.0.1:0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patient(30), check=False)

    assert done.returncode == UNKNOWN
    assert "0 of 4 nodes came in 0.5 s: nobody" in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("lead", "--nodes", "1"), "--nodes: 1 is not accepted; A link needs two nodes."),
        (("lead", "--nodes", "8", "--seconds", "0"), "--seconds: 0.0 is not accepted"),
        (("join", "nowhere"), "HOST:PORT: 'nowhere' is not accepted; Give HOST:PORT"),
    ],
)
def test_wrong_usage_is_told_with_its_fix(words: tuple[str, ...], says: str) -> None:
    done = subprocess.run([*MODULE, *words], capture_output=True, text=True, timeout=patient(30), check=False)

    assert done.returncode == USAGE
    assert says in done.stderr
