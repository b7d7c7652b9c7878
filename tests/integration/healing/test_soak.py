"""Fault upon fault on real processes, some before the last is healed: the job still ends, and is explained."""

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from patience import patient

pytestmark = pytest.mark.long

EXAMPLE = Path(__file__).parents[3] / "examples" / "bytes" / "train.py"
HOLDFAST = Path(sys.executable).with_name("holdfast")

JOB = f"""
apiVersion: holdfast.dev/v1alpha1
kind: TrainingJob
metadata: {{name: soak}}
spec:
  entrypoint: ["{EXAMPLE}", "--steps", "130", "--pace", "0.15", "--checkpoint-every", "5", "--batch", "12"]
  nodes: {{min: 1, max: 3, spares: 1}}
  startup: {{preflight: none}}
"""

FAULTS = """
- {at: {step: 10}, do: kill-worker, rank: 2}
- {at: {step: 20}, after: recovered, do: kill-node, rank: 0}
- {at: {step: 21}, do: kill-node, rank: 1}
- {at: {step: 22}, do: kill-worker, rank: 0}
- {at: {step: 45}, after: recovered, do: kill-watchdog}
- {at: {step: 48}, do: kill-worker, rank: 0}
- {at: {step: 65}, after: recovered, do: stop-worker, rank: 0}
- {at: {step: 66}, after: recovered, do: kill-launcher, rank: 0}
- {at: {step: 85}, after: recovered, do: xid, rank: 0, xid: 79}
"""


def holdfast(*arguments: object) -> str:
    """What a command prints; it must end well."""
    command = [str(HOLDFAST), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patient(480), check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.timeout(600)
def test_a_job_outlives_fault_upon_fault_and_explains_every_one(tmp_path: Path) -> None:
    job, faults, state = tmp_path / "job.yaml", tmp_path / "faults.yaml", tmp_path / "state"
    job.write_text(JOB)
    faults.write_text(FAULTS)
    holdfast("run", job, "--faults", faults, "--state-dir", state)
    status = json.loads(holdfast("incidents", "--state-dir", state, "-o", "json"))
    assert len(status) >= 7
    for incident in status:
        assert incident["state"] == "Recovered", incident
        assert incident["culprit"]["node"]
        assert incident["evidence"]
        assert incident["actions"]
    assert {incident["kind"] for incident in status} >= {"ProcessExit", "MemberLost", "Xid"}
    assert "byte for byte" in holdfast("replay", "--state-dir", state)
    left = [
        each.cmdline() for each in psutil.process_iter(["cmdline"]) if str(tmp_path) in str(each.info["cmdline"])
    ]
    assert left == []
