"""Before the first step: every node proves that it computes right, and one that does not gets no ranks."""

import json
from pathlib import Path

from embeddedrun import TOY, holdfast, job_file

from holdfast.agent.sensors.simulated_gpu import gpu_uuid


def test_a_gpu_that_computes_wrong_one_time_in_fifty_is_evicted_before_the_first_step(tmp_path: Path) -> None:
    job = job_file(tmp_path, script=TOY, words=["40"], nodes="{min: 2, max: 2, spares: 1}", startup="{}")
    faults = tmp_path / "faults.yaml"
    faults.write_text("- {at: {step: 0}, do: compute-wrong, node: node-2}\n")
    state = tmp_path / "state"
    ended = holdfast("run", job, "--state-dir", state, "--faults", faults)
    assert ended.returncode == 0, ended.stderr
    assert "Preflight: " in ended.stderr
    incidents = json.loads(holdfast("incidents", "--state-dir", state, "-o", "json").stdout)
    (incident,) = (each for each in incidents if each["kind"] == "SelfTest")
    assert incident["culprit"]["node"] == "node-2"
    assert incident["culprit"]["gpu"] == gpu_uuid("node-2", 0)
    assert incident["state"] == "Recovered"
    why = holdfast("why", incident["id"], "--state-dir", state).stdout
    assert "of 149 runs gave another result" in why
    assert "evict node node-2" in why
