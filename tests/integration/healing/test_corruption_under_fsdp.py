"""Plain FSDP, where nobody holds the same: a flipped bit is found at rest, and the losses are those without it."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from forked_process import run_together
from patience import patient

pytestmark = pytest.mark.long

EXAMPLE = Path(__file__).parents[3] / "examples" / "bytes" / "train.py"
HOLDFAST = Path(sys.executable).with_name("holdfast")
STEPS = 70
PACE = ("--pace", "0.15")  # on a fast machine too the flip is asked for before the end
FLIP_AT = 20
RUN_S_MAX = 240
WORDS = (
    *("--steps", str(STEPS), "--batch", "24", "--length", "64"),
    *("--layers", "1", "--width", "32", "--heads", "2"),
)
JOB = """
apiVersion: holdfast.dev/v1alpha1
kind: TrainingJob
metadata: {{name: sound}}
spec:
  entrypoint: {entrypoint}
  nodes: {{min: 2, max: 2, spares: 1}}
  startup: {{preflight: none}}
  faultPolicy: {{corruption: {{fingerprintEverySteps: 5}}}}
"""


def losses(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def undisturbed(directory: Path) -> dict[int, str]:
    """Two ranks, with no Holdfast around them."""
    file = directory / "undisturbed.jsonl"
    run_together(2, [EXAMPLE, *WORDS, "--losses", file], cwd=directory, within_s=patient(RUN_S_MAX))
    return {line["step"]: line["hex"] for line in losses(file)}


def shown(directory: Path, *words: str) -> Any:
    """What a command says of the run, as JSON."""
    command = [HOLDFAST, *words, "--state-dir", directory / "state", "-o", "json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=patient(60))
    return json.loads(done.stdout)


@pytest.mark.timeout(3 * RUN_S_MAX)
def test_a_bit_flipped_under_fsdp_is_found_and_every_loss_is_the_undisturbed_ones(tmp_path: Path) -> None:
    expected = undisturbed(tmp_path)
    file = tmp_path / "losses.jsonl"
    entrypoint = json.dumps([str(EXAMPLE), *WORDS, *PACE, "--checkpoint-every", "5", "--losses", str(file)])
    (tmp_path / "job.yaml").write_text(JOB.format(entrypoint=entrypoint))
    (tmp_path / "faults.yaml").write_text(f"- {{at: {{step: {FLIP_AT}}}, do: flip-bit, rank: 1, bit: 23}}\n")
    command = [HOLDFAST, "run", tmp_path / "job.yaml", "--state-dir", tmp_path / "state"]
    command += ["--faults", tmp_path / "faults.yaml", "--no-replace"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patient(RUN_S_MAX), check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    lines = losses(file)
    assert {line["step"]: line["hex"] for line in lines} == expected  # of a step that was done again, the last
    (incident,) = shown(tmp_path, "incidents")
    assert (incident["kind"], incident["state"]) == ("Corruption", "Recovered")
    assert (incident["cause"], incident["culprit"]["rank"]) == ("memory change", 1)
    assert incident["actions"][0]["does"] == f"evict node {incident['culprit']['node']}"

    logs = [log for log in (tmp_path / "state" / "logs").iterdir() if "bit flipped on request" in log.read_text()]
    flipped_at = int(re.search(r"bit flipped on request .*step=(\d+)", logs[0].read_text())[1])  # type: ignore[index]
    assert f"changed after step {flipped_at}" in incident["error"]
    resumed_at = next(line["step"] for line in lines if line["round"] == lines[-1]["round"])
    assert 1 < resumed_at <= flipped_at + 1, "from a checkpoint of before the flip, and not anew"
