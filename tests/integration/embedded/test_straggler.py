"""A rank that has longer sequences than the others makes all of them wait: it is named, and its machine is not."""

import json
from pathlib import Path

import pytest
from embeddedrun import holdfast, job_file

pytestmark = pytest.mark.long

STEPS, SLOW, LENGTH = 120, 1, 512

TRAINS = f"""
import time
import torch, torch.distributed as dist
from holdfast.trainer import Run

run = Run(backend="gloo")
part_of_step = 0.01  # seconds of processor time
torch.set_num_threads(1)

def train(part):
    longer = 3 if part.rank == {SLOW} else 1
    for step in range(1, {STEPS} + 1):
        until = time.thread_time() + part_of_step * longer
        while time.thread_time() < until:
            pass
        dist.all_reduce(torch.ones(1))
        time.sleep(0.03)
        run.step(step, tokens={LENGTH} * longer, longest={LENGTH} * longer)

run.enter(train)
"""


@pytest.mark.timeout(240)
def test_a_rank_with_longer_sequences_is_named_and_its_node_stays(tmp_path: Path) -> None:
    job = job_file(
        tmp_path,
        script=TRAINS,
        nodes="{min: 2, max: 2}",
        more="  processesPerNode: 2\n  faultPolicy:\n    heartbeat: {interval: 200ms, lost: 30s}\n"
        "    straggler: {slowerThan: 15%, sustained: 10steps, action: Evict}\n",
    )
    state = tmp_path / "state"
    ended = holdfast("run", job, "--state-dir", state)
    assert ended.returncode == 0, ended.stderr
    incidents = json.loads(holdfast("incidents", "--state-dir", state, "-o", "json").stdout)
    slow = [each for each in incidents if each["kind"] == "Straggler" and each["culprit"].get("rank") == SLOW]
    assert [each["cause"] for each in slow] == ["slow: shape"], incidents
    assert slow[0]["state"] == "Recovered"
    assert "longer sequences" in slow[0]["error"]
    assert all(each["cause"] != "slow: machine" for each in incidents), "a loaded machine is no broken one"
    assert not any(each.get("actions") for each in incidents), "nobody was taken away"
