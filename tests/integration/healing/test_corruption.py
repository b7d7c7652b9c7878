"""Silent corruption: a flipped bit is found, its node leaves, and the losses are those of a run without it."""

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
STEPS = 80
PACE = ("--pace", "0.15")  # on a fast machine too the flip is asked for and found before the end
FLIP_AT = 20
EVERY = 5
RUN_S_MAX = 240
WORDS = (
    *("--replicated", "--steps", str(STEPS)),
    *("--batch", "6", "--length", "16", "--layers", "1", "--width", "16", "--heads", "2"),
)

# The corrupted rank goes at least a step further, and no further than the next comparison: how many of them would
# pass until somebody looks depends on how fast the steps are.
HOLD = f"""
import logging
import re
import time


class Flips(logging.StreamHandler):
    last = None

    def emit(self, record):
        super().emit(record)
        found = re.match(r"bit flipped on request .*step=(\\d+)", record.getMessage())
        self.last = int(found[1]) if found else self.last


flips = Flips()
logging.getLogger().addHandler(flips)


def hold(done):
    while flips.last is not None and done > flips.last and done % {EVERY} == 0:
        run.check()
        time.sleep(0.01)


def train(part"""

JOB = """
apiVersion: holdfast.dev/v1alpha1
kind: TrainingJob
metadata: {{name: sound}}
spec:
  entrypoint: {entrypoint}
  nodes: {{min: 2, max: 3, spares: 1}}
  startup: {{preflight: none}}
  faultPolicy: {{corruption: {{fingerprintEverySteps: {every}}}}}
"""


def held(directory: Path) -> Path:
    """The example, with the hold in it."""
    text = EXAMPLE.read_text()
    train = "def train(part: Assignment) -> None:"
    for before, after in (
        ("\n\ndef train(part", HOLD),
        (train, train + "\n    flips.last = None"),
        ("        total = ", "        hold(step - 1)\n        total = "),
    ):
        assert text.count(before) == 1
        text = text.replace(before, after)
    file = directory / "train.py"
    file.write_text(text)
    return file


def losses(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def undisturbed(directory: Path) -> dict[int, str]:
    """Three ranks, with no Holdfast around them."""
    file = directory / "undisturbed.jsonl"
    run_together(3, [EXAMPLE, *WORDS, "--losses", file], cwd=directory, within_s=patient(RUN_S_MAX))
    return {line["step"]: line["hex"] for line in losses(file)}


def shown(directory: Path, *words: str) -> Any:
    """What a command says of the run, as JSON."""
    command = [HOLDFAST, *words, "--state-dir", directory / "state", "-o", "json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=patient(60))
    return json.loads(done.stdout)


def corrupted(directory: Path) -> list[dict[str, Any]]:
    """The same under Holdfast, with one bit of rank 1's parameters flipped on the way; the losses rank 0 wrote."""
    file = directory / "losses.jsonl"
    entrypoint = json.dumps(
        [str(held(directory)), *WORDS, *PACE, "--checkpoint-every", "5", "--losses", str(file)]
    )
    (directory / "job.yaml").write_text(JOB.format(entrypoint=entrypoint, every=EVERY))
    (directory / "faults.yaml").write_text(f"- {{at: {{step: {FLIP_AT}}}, do: flip-bit, rank: 1, bit: 23}}\n")
    command = [HOLDFAST, "run", directory / "job.yaml", "--state-dir", directory / "state"]
    command += ["--faults", directory / "faults.yaml", "--no-replace"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patient(RUN_S_MAX), check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return losses(file)


@pytest.mark.timeout(3 * RUN_S_MAX)
def test_a_flipped_bit_is_voted_out_and_every_loss_is_the_undisturbed_ones_bit_for_bit(tmp_path: Path) -> None:
    expected = undisturbed(tmp_path)
    lines = corrupted(tmp_path)
    healed = {line["step"]: line["hex"] for line in lines}  # of a step that was done again, the last
    assert healed == expected

    (incident,) = shown(tmp_path, "incidents")
    assert (incident["kind"], incident["state"]) == ("Corruption", "Recovered")
    assert incident["culprit"]["rank"] == 1
    assert incident["actions"][0]["does"] == f"evict node {incident['culprit']['node']}"
    logs = [log for log in (tmp_path / "state" / "logs").iterdir() if "bit flipped on request" in log.read_text()]
    assert [log.name.split(".")[0] for log in logs] == ["rank-00001"]

    flipped_at = int(re.search(r"bit flipped on request .*step=(\d+)", logs[0].read_text())[1])  # type: ignore[index]
    found_at = int(re.search(r"after step (\d+)", incident["error"])[1])  # type: ignore[index]
    assert flipped_at <= found_at <= flipped_at + EVERY

    last_round = lines[-1]["round"]
    resumed_at = next(line["step"] for line in lines if line["round"] == last_round)
    spoiled = {line["step"] for line in lines if line["hex"] != expected[line["step"]]}
    assert spoiled, "the flip changed what was computed, so that going back was needed"
    assert 1 < resumed_at <= min(spoiled), "from a checkpoint, and not anew"
    assert resumed_at - 1 < found_at, "from one that a comparison had found equal"
