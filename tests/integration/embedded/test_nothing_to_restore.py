"""Checkpoints that are there and cannot be used: the run stops and says so, and starts over when it is told."""

import json
from pathlib import Path

import pytest
import torch
from embeddedrun import holdfast, job_file, running, wait_until

from holdfast.checkpoint import Checkpointer, Standalone

pytestmark = pytest.mark.long

SCRIPT = """
import sys, time
from pathlib import Path
import torch
from holdfast.checkpoint import Checkpointer
from holdfast.trainer import Run

run = Run()
here = Path(sys.argv[1])

def train(assignment):
    model = torch.nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    checkpointer = Checkpointer(run, model=model, optimizer=optimizer, every_steps=4, compares_batches=False)
    for step, batch in checkpointer.steps([torch.ones(1, 2)] * 10, until=10):
        (here / f"round-{assignment.round}-step-{step}").touch()
        while (here / "closed").exists() and step == 7:
            run.check()
            time.sleep(0.01)
        model(batch).square().sum().backward()
        optimizer.step()
        run.step(step)

run.enter(train)
"""


def an_earlier_life_saved(folder: Path) -> None:
    model = torch.nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    checkpointer = Checkpointer(
        Standalone(), model=model, optimizer=optimizer, uri=folder.as_uri(), every_steps=4, keep=2
    )
    for _ in checkpointer.steps([torch.ones(1, 2)] * 8):
        pass


def swap_manifests(folder: Path) -> None:
    one, other = sorted(folder.glob("step-*/manifest.json"))
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def test_a_run_stops_where_no_checkpoint_can_be_used_and_starts_over_when_it_is_told(tmp_path: Path) -> None:
    stored, state, here = tmp_path / "checkpoints", tmp_path / "state", tmp_path / "here"
    here.mkdir()
    an_earlier_life_saved(stored)
    swap_manifests(stored)
    more = f"  checkpoint: {{uri: '{stored.as_uri()}'}}\n"
    job = job_file(tmp_path, script=SCRIPT, words=[str(here)], nodes="{min: 2, max: 2}", more=more)

    ended = holdfast("run", job, "--state-dir", state)
    assert ended.returncode == 1, ended.stderr
    assert "checkpoints are there and none can be used: step-00000004: its manifest is of step 8" in ended.stderr
    assert "--fresh starts it over" in ended.stderr
    assert list(here.iterdir()) == [], "not one step was begun"
    (incident,) = json.loads(holdfast("incidents", "--state-dir", state, "-o", "json").stdout)
    assert (incident["kind"], incident["state"]) == ("NothingToRestore", "Paged")
    assert "no node is to blame" in holdfast("why", incident["id"], "--state-dir", state).stdout

    (here / "closed").touch()
    with running("run", job, "--state-dir", state, "--fresh") as process:
        wait_until(lambda: any(here.glob("round-*-step-7")), "step 7 of the run that starts over")
        first = {each.name for each in here.iterdir()} - {"closed"}
        assert any(name.endswith("step-1") for name in first)
        said = holdfast("restart", "--fresh", "--state-dir", state)
        assert said.stdout.startswith("Done: every worker starts anew, from the beginning"), said
        # Saved at step 4, and left all the same.
        wait_until(lambda: len(list(here.glob("round-*-step-1"))) == 2, "step 1 of the round after")
        (here / "closed").unlink()
        wait_until(lambda: process.poll() is not None, "the end of the run")
        assert process.returncode == 0
