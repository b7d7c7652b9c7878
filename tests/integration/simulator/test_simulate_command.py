"""The command with the simulator behind it, on fleets so small that a run takes a moment."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from holdfast.cli.main import answer

JOB = """
apiVersion: holdfast.dev/v1alpha1
kind: TrainingJob
metadata: {name: llm}
spec:
  entrypoint: [train.py]
  nodes: {min: 6, max: 8, spares: 1}
  processesPerNode: 8
  checkpoint: {interval: 20m}
"""
SCENARIO = """
job: job.yaml
faults:
  - {name: lost, symptom: NodeLost, rate: 100}
  - {name: killed, symptom: ProcessExit, rate: 100, infrastructure: 0}
days: 1
seeds: 2
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "often.yaml").write_text(JOB.replace("20m", "1m"))
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert answer(["simulate", *words]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


@pytest.mark.usefixtures("here")
def test_a_policy_is_judged_by_what_failures_make_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Two runs in two processes, and the same two in this one."""
    words = ["scenario.yaml", "--nodes", "6", "--spares", "2", "--days", "2", "--price", "2.5", "-o", "json"]
    found = json.loads(asked(capsys, *words, "--workers", "2"))
    assert json.loads(asked(capsys, *words, "--workers", "1")) == found
    assert (found["nodes"], found["spares"], found["days"], found["seeds"]) == (6, 2, 2.0, [1, 2])
    assert 0.5 < found["figures"]["ettr"]["mean"] < 1.0
    assert found["figures"]["lost_money"]["mean"] == pytest.approx(
        2.5 * found["figures"]["lost_gpu_hours"]["mean"]
    )
    assert set(found["faults"]) <= {"lost", "killed"}
    assert sum(each["mean"] for each in found["by_phase"].values()) == pytest.approx(
        found["figures"]["lost_minutes"]["mean"], rel=1e-6
    )
    other = json.loads(asked(capsys, *words, "--seeds", "1", "--first-seed", "9", "--workers", "1"))
    assert other["seeds"] == [9]
    assert other["figures"] != found["figures"]


def test_what_fails_is_what_the_presets_say_and_settings_are_set(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "llama3" in asked(capsys, "--presets")
    words = ["job.yaml", "--preset", "spot", "--days", "1", "--seeds", "1", "--workers", "1"]
    text = asked(capsys, *words, "--set", "times.load_s=100", "--plot", "spot.svg")
    assert text.startswith("job: 8 nodes (64 GPUs) and 1 spares, 1 days, 1 run")
    assert ElementTree.parse(here / "spot.svg").getroot().tag.endswith("svg")


@pytest.mark.usefixtures("here")
def test_two_policies_live_through_the_same_failures(capsys: pytest.CaptureFixture[str]) -> None:
    """The same machines fail at the same times, whoever decides; by pages there is nothing between the two."""
    (Path() / "faults.yaml").write_text("kinds: [{name: lost, symptom: NodeLost, rate: 100}]")
    words = ["--compare", "job.yaml", "often.yaml", "--preset", "faults.yaml", "--days", "1", "--seeds", "2"]
    found = json.loads(asked(capsys, *words, "--by", "pages", "--workers", "1", "-o", "json"))["comparison"]
    assert (found["first"], found["second"], found["by"]) == ("job", "often", "pages")
    differences = {each["name"]: each for each in found["differences"]}
    assert differences["faults"]["change"]["mean"] == 0.0


@pytest.mark.usefixtures("here")
def test_a_sweep_tries_every_combination(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["scenario.yaml", "--sweep", "spares=0..1", "interval=auto,5m", "--seeds", "1", "--workers", "1"]
    rows = asked(capsys, *words).splitlines()
    assert len(rows) == 5
    assert {" ".join(row.split()[:2]) for row in rows[1:]} == {
        f"spares={spares} interval={interval}" for spares in (0, 1) for interval in ("auto", "5m")
    }
