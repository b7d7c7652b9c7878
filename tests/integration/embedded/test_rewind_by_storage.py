"""`holdfast rewind` by what storage holds: one run, on a directory in which an earlier life left a checkpoint."""

import json
import shutil
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
gates = Path(sys.argv[1])

def train(assignment):
    model = torch.nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    checkpointer = Checkpointer(run, model=model, optimizer=optimizer, every_steps=10, compares_batches=False)
    for step, batch in checkpointer.steps([torch.ones(1, 2)] * 100, until=50):
        while (gates / f"closed-{step}").exists():
            (gates / f"here-{step}-{assignment.round}").touch()
            run.check()
            time.sleep(0.01)
        loss = model(batch).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.step(step, loss=loss.detach())

run.enter(train)
"""


def an_earlier_life_saved(folder: Path, step: int) -> None:
    model = torch.nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    checkpointer = Checkpointer(Standalone(), model=model, optimizer=optimizer, uri=folder.as_uri())
    for _ in checkpointer.steps([torch.ones(1, 2)] * step):
        pass


def steps_in(folder: Path) -> list[int]:
    return sorted(int(each.name[5:]) for each in folder.glob("step-????????"))


def test_a_rewind_goes_by_what_is_there_and_names_what_it_restored(tmp_path: Path) -> None:
    stored, gates, state = tmp_path / "checkpoints", tmp_path / "gates", tmp_path / "state"
    backup = tmp_path / "backup"
    an_earlier_life_saved(stored, 20)
    shutil.copytree(stored, backup)
    gates.mkdir()
    for step in (26, 47):
        (gates / f"closed-{step}").touch()

    def at_gate(step: int) -> int:
        """The round that stands in front of the step."""
        there = [int(each.name.split("-")[2]) for each in gates.glob(f"here-{step}-*")]
        return max(there, default=0)

    def rewind(step: int) -> tuple[int, str, str]:
        done = holdfast("rewind", str(step), "--timeout", "80", "--state-dir", state)
        return done.returncode, done.stdout.strip(), done.stderr.strip()

    more = f"  checkpoint: {{uri: '{stored.as_uri()}', keep: 1}}\n"
    job = job_file(tmp_path, script=SCRIPT, words=[str(gates)], nodes="{min: 1, max: 1}", more=more)
    with running("run", job, "--state-dir", state) as process:
        wait_until(lambda: at_gate(26) > 0, "the first round in front of step 26")
        code, answer, _ = rewind(21)
        assert code == 0
        second = at_gate(26) if at_gate(26) > 1 else 2
        wait_until(lambda: at_gate(26) >= second, "the second round in front of step 26")
        assert answer == (f"Done: round {at_gate(26)} restored step 20 (21 was asked for; 21 is not in storage)")
        (gates / "closed-26").unlink()
        wait_until(lambda: at_gate(47) > 0, "the second round in front of step 47")
        wait_until(lambda: steps_in(stored) == [40], "only the newest checkpoint in storage")
        code, answer, refusal = rewind(35)
        assert (code, answer) == (1, "")
        assert "restored step 40 (35 was asked for; nothing that can be restored is at or before it" in refusal
        shutil.copytree(backup / "step-00000020", stored / "step-00000020")
        code, answer, _ = rewind(21)
        assert (code, answer.partition("restored ")[2]) == (0, "step 20 (21 was asked for)"), answer
        # It trains again from there, up to the gate: what it saves on the way is all that stays.
        wait_until(lambda: steps_in(stored) == [40], "only the newest checkpoint in storage, once more")
        code, answer, _ = rewind(45)
        assert (
            code,
            answer.endswith("restored step 40 (45 was asked for; nothing from 41 to 45 is in storage)"),
        ) == (
            0,
            True,
        ), answer
        (gates / "closed-47").unlink()
        wait_until(lambda: process.poll() is not None, "the end of the run")
        assert process.returncode == 0
    listed = json.loads(holdfast("checkpoint", "ls", str(stored), "-o", "json").stdout)
    assert [(each["step"], each["healthy"], each["verified"], each["kept"]) for each in listed] == [
        (50, True, None, ["Newest", "NewestHealthy", "UntilCompared"])
    ]
