"""Healing is exact: what a fault costs is time, never the result.

The example job runs through the command a user types; faults are injected by name and step.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import patient

pytestmark = pytest.mark.long

EXAMPLE = Path(__file__).parents[3] / "examples" / "bytes" / "train.py"
HOLDFAST = Path(sys.executable).with_name("holdfast")
STEPS = 80
PACE = ("--pace", "0.15")  # of runs with faults: on a fast machine too all of them come before the end
# A model as small as shows the same: what is compared are bits, not losses that fall.
WORDS = ("--batch", "12", "--length", "32", "--layers", "1")
RUN_S_MAX = 240

JOB = """
apiVersion: holdfast.dev/v1alpha1
kind: TrainingJob
metadata: {{name: exact}}
spec:
  entrypoint: {entrypoint}
  nodes: {{min: 1, max: {nodes}, spares: {spares}}}
  startup: {{preflight: none}}
"""


class Outcome:
    """What one run left: every loss rank 0 wrote, in order, and the incidents."""

    def __init__(self, directory: Path) -> None:
        lines = (directory / "losses.jsonl").read_text().splitlines()
        self.lines = [json.loads(line) for line in lines]
        self.directory = directory

    def by_step(self) -> dict[int, set[str]]:
        """All losses ever computed for each step, exactly."""
        losses: dict[int, set[str]] = {}
        for line in self.lines:
            losses.setdefault(line["step"], set()).add(line["hex"])
        return losses

    def last_of(self, step: int) -> float:
        return float(next(line["loss"] for line in reversed(self.lines) if line["step"] == step))

    def incidents(self) -> list[dict[str, object]]:
        shown = subprocess.run(
            [HOLDFAST, "incidents", "--state-dir", self.directory / "state", "-o", "json"],
            capture_output=True,
            text=True,
            timeout=patient(60),
            check=True,
        )
        found: list[dict[str, object]] = json.loads(shown.stdout)
        return found


def run(directory: Path, *, nodes: int, spares: int = 0, steps: int = STEPS, faults: str = "") -> Outcome:
    """Run the job to its end as a user would."""
    directory.mkdir(parents=True, exist_ok=True)
    losses = directory / "losses.jsonl"
    job = directory / "job.yaml"
    words = ("--steps", str(steps), "--checkpoint-every", "5", "--losses", str(losses), *(PACE if faults else ()))
    job.write_text(JOB.format(entrypoint=json.dumps([str(EXAMPLE), *WORDS, *words]), nodes=nodes, spares=spares))
    command = [HOLDFAST, "run", job, "--state-dir", directory / "state", "--no-replace"]
    if faults:
        script = directory / "faults.yaml"
        script.write_text(faults)
        command += ["--faults", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patient(RUN_S_MAX), check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return Outcome(directory)


@pytest.mark.timeout(3 * RUN_S_MAX)
def test_after_a_worker_kill_and_a_node_swap_every_loss_is_the_undisturbed_ones_bit_for_bit(
    tmp_path: Path,
) -> None:
    undisturbed = run(tmp_path / "undisturbed", nodes=2).by_step()
    assert set(undisturbed) == set(range(1, STEPS + 1))
    assert all(len(losses) == 1 for losses in undisturbed.values())
    healed = run(
        tmp_path / "healed",
        nodes=2,
        spares=1,
        faults="""
- {at: {step: 10}, do: kill-worker, rank: 1}
- {at: {step: 25}, after: recovered, do: kill-node, rank: 1}
- {at: {step: 40}, after: recovered, do: kill-worker, rank: 0}
""",
    )
    assert healed.by_step() == undisturbed
    incidents = healed.incidents()
    assert len(incidents) == 3
    assert {incident["state"] for incident in incidents} == {"Recovered"}


@pytest.mark.timeout(3 * RUN_S_MAX)
def test_after_a_shrink_the_losses_are_those_of_a_run_resharded_on_purpose_at_the_same_step(
    tmp_path: Path,
) -> None:
    shrunk = run(tmp_path / "shrunk", nodes=2, faults="- {at: {step: 20}, do: kill-node, rank: 1}\n")
    first_alone = _first_step_alone(shrunk)
    before = run(tmp_path / "on-purpose", nodes=2, steps=first_alone - 1)
    checkpoints = before.directory / "state" / "checkpoints"
    command = [sys.executable, EXAMPLE, *WORDS, "--steps", str(STEPS), "--checkpoint", checkpoints]
    command += ["--losses", before.directory / "losses.jsonl"]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}  # as the workers have it; more of them wait for each other
    subprocess.run(command, check=True, timeout=patient(RUN_S_MAX), capture_output=True, env=alone)
    on_purpose = Outcome(before.directory)
    for step in range(first_alone, STEPS + 1):
        assert shrunk.last_of(step) == pytest.approx(on_purpose.last_of(step), abs=1e-3), f"step {step}"


def _first_step_alone(outcome: Outcome) -> int:
    """The first step of the last round."""
    last = outcome.lines[-1]["round"]
    first = next(line["step"] for line in outcome.lines if line["round"] == last)
    assert 1 < first < STEPS, "the node was lost in the middle of the run"
    return int(first)
