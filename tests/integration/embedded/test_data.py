"""The example with its data spoilt: two ranks read one shard, and a restart begins at the first sample. Both are
named with ranks and samples; the example as it is, restarted alike, names nothing.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from embeddedrun import holdfast, job_file
from gates import EXAMPLE
from patience import patient

pytestmark = pytest.mark.long

# Ten steps a second. Of the first steps of a round all are told, so that how far off the data are is known.
STEPS, EVERY, KILLED_AT = 44, 8, 26


def trained(tmp_path: Path, script: str) -> list[dict[str, Any]]:
    """The incidents of a run on two nodes whose second rank is killed on its way."""
    words = f"--steps {STEPS} --checkpoint-every {EVERY} --pace 0.1 --replicated --layers 1 --width 16 --heads 2"
    job = job_file(
        tmp_path,
        script=script,
        words=words.split(),
        nodes="{min: 2, max: 2}",
        # What a loaded machine does to one of the ranks is told by another detector.
        more=f"  faultPolicy:\n    heartbeat: {{interval: 100ms, lost: {patient(3):.0f}s}}\n"
        "    straggler: {sustained: 100000steps}\n",
    )
    faults = tmp_path / "faults.yaml"
    faults.write_text(f"- {{at: {{step: {KILLED_AT}}}, do: kill-worker, rank: 1}}\n")
    state = tmp_path / "state"
    ended = holdfast("run", job, "--faults", faults, "--state-dir", state)
    assert ended.returncode == 0, ended.stderr
    told: list[dict[str, Any]] = json.loads(holdfast("incidents", "--state-dir", state, "-o", "json").stdout)
    return told


@pytest.mark.timeout(240)
def test_a_shard_that_two_ranks_read_and_a_restart_at_the_first_sample_are_named(tmp_path: Path) -> None:
    script = EXAMPLE.read_text()
    for right, wrong in (("batch * rank //", "batch * 0 //"), ("batch * (rank + 1) //", "batch * 1 //")):
        assert right in script
        script = script.replace(right, wrong)
    assert 'self.taken = state["taken"]' in script
    script = script.replace('self.taken = state["taken"]', "self.taken = 0")
    incidents = trained(tmp_path, script)
    found = {each["cause"]: each for each in incidents if each["kind"] == "Data"}
    # A process that goes on in the next round sees by itself that it takes batches again.
    named = {"the same batch on two ranks", "restart at the wrong sample"}
    assert named <= set(found) <= {*named, "a batch comes again"}, incidents
    same = found["the same batch on two ranks"]
    assert same["state"] == "Recovered"
    assert same["culprit"]["rank"] == 0
    assert "ranks 0-1 took a batch of 12 samples" in same["error"]
    offset = found["restart at the wrong sample"]
    told = re.search(
        r"step (\d+), .* of step (\d+): .* (\d+) steps too early, .* about (\d+) samples", offset["error"]
    )
    assert told is not None, offset["error"]
    step, like, early, samples = map(int, told.groups())
    assert (step - like, 24 * early) == (early, samples)
    assert EVERY <= early <= KILLED_AT + 10, "as many steps as lay before what was restored"
    assert offset["round"] == max(each["round"] for each in incidents)
    assert len([each for each in incidents if each["kind"] != "Data"]) == 1, "the worker that was killed"


@pytest.mark.timeout(240)
def test_the_example_as_it_is_names_nothing(tmp_path: Path) -> None:
    incidents = trained(tmp_path, EXAMPLE.read_text())
    assert [each["kind"] for each in incidents] == ["ProcessExit"]
