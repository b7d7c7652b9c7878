"""Verbs of the fault script, each with the incident it must lead to: healed in one run, observed in another."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from embeddedrun import holdfast, interrupt, job_file, running

pytestmark = pytest.mark.long

TRAINS = """
import sys, time
import torch, torch.distributed as dist
from holdfast.checkpoint import Checkpointer
from holdfast.trainer import Run

run = Run()


def batches(rank, world):
    number = 0
    while True:
        number += 1
        # No batch comes twice, and its samples are not all the same. A larger world takes numbers that a smaller
        # one has had, for in that a rank takes more of them.
        value = 0.01 * (rank + number % 7) + 1e-6 * number + 0.0033 * world
        yield torch.full((4, 8), value) + 1e-3 * torch.arange(4)[:, None]


def train(part):
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    checkpointer = Checkpointer(run, model=model, optimizer=optimizer, every_steps=20)
    for step, batch in checkpointer.steps(batches(part.rank, part.world_size), until=int(sys.argv[1])):
        loss = model(batch).square().mean()
        loss.backward()
        for each in model.parameters():
            dist.all_reduce(each.grad)
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.02)
        run.step(step, loss=float(loss))
    checkpointer.close()


run.enter(train)
"""
POLICY = """  faultPolicy:
    thermal: {sustained: 2s}
    corruption: {fingerprintEverySteps: 5}
    preemption: {action: Checkpoint}
    straggler: {sustained: 100000steps}
    budget: {evictions: 50, per: 1h, clusterFraction: 100%}
"""
LAST = "injecting: kill-watchdog"


def drilled(tmp_path: Path, faults: Sequence[str], *options: str) -> tuple[str, list[dict[str, Any]]]:
    """Run until the last fault, which is kill-watchdog, or to the end; what was said, and the incidents."""
    job = job_file(tmp_path, script=TRAINS, words=["100000"], nodes="{min: 1, max: 2, spares: 1}", more=POLICY)
    script = tmp_path / "faults.yaml"
    script.write_text("".join(f"- {{{fault}}}\n" for fault in faults))
    state, said = tmp_path / "state", ""
    with running("run", job, "--state-dir", state, "--faults", script, *options) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said += line
            if LAST in line:
                said += interrupt(process)
                break
    ended = holdfast("incidents", "--state-dir", state, "-o", "json")
    return said, json.loads(ended.stdout)


def healed(step: int, verb: str) -> str:
    return f"at: {{step: {step}}}, after: recovered, do: {verb}"


def test_what_each_verb_breaks_is_found_and_healed(tmp_path: Path) -> None:
    verbs = {
        "wrong-data, rank: 1, for: 16": "Data",  # first: a round that ends at once has no time to be told of
        "break-collective, rank: 1": "CollectiveFailed",
        "raise, rank: 1": "UserCode",
        "full-disk, rank: 1, for: 100": "ProcessExit",
        "hot, rank: 0": "Thermal",
        "condition, rank: 1, kind: PcieDegraded": "Condition",
        "partition, rank: 1, seconds: 8": "MemberLost",
    }
    unseen = (
        "slow, rank: 0, for: 3, seconds: 0.1",
        "spike, rank: 0",
    )
    planned = ("drain, rank: 0", "preempt, rank: 1, seconds: 60", "kill-agent, rank: 0")
    said, incidents = drilled(
        tmp_path,
        [
            *(f"at: {{step: 5}}, do: {verb}" for verb in unseen),
            *(healed(25, verb) for verb in verbs),
            *(healed(25, verb) for verb in planned),
            healed(25, "kill-launcher, rank: 1"),
            healed(25, "kill-watchdog"),
        ],
    )
    assert "NOT INJECTED" not in said
    found = [(each["kind"], each["state"]) for each in incidents]
    assert found == [(kind, "Recovered") for kind in (*verbs.values(), "MemberLost")], said
    assert " full at file://" in incidents[3]["error"]


# What each fault leads to: the kind of the incident, and how its cause begins.
GOES_ON = {
    "hot, rank: 0": ("Thermal", "GPU hot"),
    "condition, rank: 0, kind: PcieDegraded": ("Condition", "PcieDegraded"),
    "condition, rank: 1, kind: NvlinkDown": ("Condition", "NvlinkDown"),
    "condition, rank: 0, kind: RowRemapFailed": ("Condition", "RowRemapFailed"),
    "condition, rank: 1, kind: LinkDown": ("Condition", "LinkDown"),
    "preempt, rank: 0": ("Condition", "node taken away"),
    "drain, rank: 1": ("Condition", "node drained"),
    "xid, rank: 0, xid: 94": ("Xid", "xid 94"),
    "gpu-lost, rank: 1": ("GpuLost", "GPU lost"),
    "xid, rank: 0, xid: 79": ("Xid", "xid 79"),
    "flip-bit, rank: 1": ("Corruption", ""),
    "nan, rank: 1": ("NonFinite", "loss is nan"),  # what follows is of a model that is lost
    "break-collective, rank: 1": ("CollectiveFailed", "collective failed"),
    "stop-worker, rank: 0": ("Hang", "the process is stopped"),
    "kill-worker, rank: 1": ("ProcessExit", "signal 9 (SIGKILL)"),
}
# Faults that leave the round without a process, one to a run: what is told first, and what ends the job.
ENDS_IT = {
    "kill-node, rank: 1": ("MemberLost", "", "MemberLost"),
    "kill-launcher, rank: 1": ("MemberLost", "", "MemberLost"),
    "end-launcher, rank: 1": ("Condition", "launcher left", "CollectiveFailed"),
    "partition, rank: 1": ("MemberLost", "silent for ", "MemberLost"),
    "raise, rank: 1": ("UserCode", "", "UserCode"),
}


def unmatched(incidents: Sequence[dict[str, Any]], expected: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """What of `expected`, kinds and how their causes begin, no incident of its own tells of."""
    left = [(each["kind"], each["cause"]) for each in incidents]
    missed = []
    for kind, cause in expected:
        told = next((each for each in left if each[0] == kind and each[1].startswith(cause)), None)
        if told is None:
            missed.append((kind, cause))
        else:
            left.remove(told)
    return missed


def test_of_twenty_faults_it_is_told_what_would_be_done_and_nothing_is(tmp_path: Path) -> None:
    assert len(GOES_ON) + len(ENDS_IT) >= 20
    said, incidents = drilled(
        tmp_path, [f"at: {{step: 10}}, after: noticed, do: {verb}" for verb in GOES_ON], "--observe"
    )
    assert "NOT INJECTED" not in said
    assert not unmatched(incidents, list(GOES_ON.values())), said
    assert {each["kind"] for each in incidents} == {kind for kind, _ in GOES_ON.values()}, said
    for each in incidents:
        assert each["state"] == "Observed"
        assert all(action["does"].startswith("would: ") for action in each["actions"])
        assert each["actions"]
    noticed = next(
        each for each in incidents if each["cause"] == "node taken away" and "injected notice" in str(each)
    )
    assert noticed["actions"][0]["does"] == "would: ask for a checkpoint"
    # The round that ran first is the only one, and no node was stopped or replaced.
    assert len({each["round"] for each in incidents}) == 1
    assert said.count("s  round ") == 1, said
    assert "out of service" not in said
    assert "takes the place" not in said
    assert "default/toy failed: observing only, so that this was not healed: signal 9 (SIGKILL)" in said


@pytest.mark.parametrize("verb", ENDS_IT)
def test_a_fault_that_leaves_the_round_without_a_process_is_told_and_ends_it(tmp_path: Path, verb: str) -> None:
    kind, cause, last = ENDS_IT[verb]
    said, incidents = drilled(tmp_path, [f"at: {{step: 10}}, do: {verb}"], "--observe")
    assert "NOT INJECTED" not in said
    assert (incidents[0]["kind"], incidents[-1]["kind"]) == (kind, last), said
    assert cause in incidents[0]["cause"]
    assert {each["state"] for each in incidents} == {"Observed"}
    assert "default/toy failed: observing only, so that this was not healed: " in said
    assert said.count("s  round ") == 1, said
    assert "takes the place" not in said
