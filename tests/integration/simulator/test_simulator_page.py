"""Every command of the page about the simulator is run, with fewer nodes and less time than it says."""

import os
import re
import shlex
from pathlib import Path

import pytest
from pastrun import JOB, past_run

from holdfast.cli.main import answer
from holdfast.cli.statedirectory import RunningJob, StateDirectory
from holdfast.watchdog.store.sqlite import SqliteStore

PAGE = Path(__file__).parents[3] / "docs" / "simulator.md"
JOB_FILE = """
apiVersion: holdfast.dev/v1alpha1
kind: TrainingJob
metadata: {name: llm}
spec:
  entrypoint: [train.py]
  nodes: {min: 3, spares: 1}
  processesPerNode: 8
"""
SMALL = ["--nodes", "3", "--days", "0.02", "--seeds", "1", "--workers", "1"]
RATE = '{"group": "Xid", "failures": 3, "gpu_hours": 9.0, "per_1000_gpu_hours": 1.0}'
FLEET = f'{{"at": 1.0, "tables": {{"kind": [{RATE}]}}}}'


def commands() -> list[str]:
    """Those of `holdfast simulate`; what reads a watchdog of a cluster is run where there is one."""
    return re.findall(r"^\$ (holdfast simulate .*)$", PAGE.read_text(), re.MULTILINE)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that the page names: the scenario and the table are the page's own."""
    scenario, table, *_ = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "scenario.yaml").write_text(scenario)
    (tmp_path / "ours.yaml").write_text(table)
    (tmp_path / "job.yaml").write_text(JOB_FILE)
    for name in ("often", "new"):
        (tmp_path / f"{name}.yaml").write_text(JOB_FILE + "  checkpoint: {interval: 5m}\n")
    (tmp_path / "whole.yaml").write_text(JOB_FILE)
    in_groups = JOB_FILE.replace("{min: 3, spares: 1}", "{min: 2, max: 4, spares: 1}")
    (tmp_path / "groups.yaml").write_text(in_groups + "  parallelism: {replicaGroupNodes: 1}\n")
    (tmp_path / "fleet.json").write_text(FLEET)
    directory = StateDirectory(tmp_path / ".holdfast" / "default-llm")
    directory.root.mkdir(parents=True)
    directory.write_running_job(RunningJob(JOB, "/job.yaml"))
    store = SqliteStore(directory.store_file)
    fence = store.claim()
    for line in past_run().lines:
        store.append(JOB, [line.event], at=line.at, after=line.offset - 1, fence=fence)
    store.close()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("here")
def test_every_command_of_the_page_does_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    found = commands()
    assert len(found) >= 9
    for command in found:
        words = shlex.split(re.sub(r"(replicaGroupNodes)=\S+", r"\1=1", command))[1:]
        small = SMALL[-4:] if "--journal" in words else [] if "--presets" in words else SMALL
        code = answer([*words, *small])
        said = capsys.readouterr()
        assert code in (0, 1) if "--policy" in words else code == 0, (command, said.err)
        assert said.out.strip(), command
        if "--plot" in words:
            assert os.path.getsize(words[words.index("--plot") + 1]) > 500
