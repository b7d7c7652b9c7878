"""Every node proves that it computes right: before the first step, or else between two steps of the training."""

import json
import re
from pathlib import Path

import pytest
from embeddedrun import TOY, holdfast, job_file, running, wait_until
from held_gpus import assert_every_gpu_second_is_booked

from holdfast.agent.sensors.simulated_gpu import gpu_uuid

pytestmark = pytest.mark.long

# It trains until a node was replaced, and some steps more.
TRAINS = """
import pathlib, sys, time
import torch, torch.distributed as dist
from holdfast.trainer import Run

run = Run()


def train(part):
    rounds = pathlib.Path(sys.argv[1])
    is_healed = any(each.name != str(part.round) for each in rounds.iterdir())
    (rounds / str(part.round)).touch()
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    run.watch(model)
    for step in range(1, 20 if is_healed else 1_000_000):
        dist.all_reduce(torch.ones(1))
        time.sleep(0.02)
        run.step(step, loss=1.0 / step)


run.enter(train)
"""


def test_a_gpu_that_computes_wrong_one_time_in_fifty_is_evicted_before_the_first_step(tmp_path: Path) -> None:
    # No spare: with one, the job may begin, and end, before the node has answered.
    job = job_file(tmp_path, script=TOY, words=["40"], nodes="{min: 2, max: 2}", startup="{}")
    faults = tmp_path / "faults.yaml"
    faults.write_text("- {at: {step: 0}, do: compute-wrong, node: node-2}\n")
    state = tmp_path / "state"
    ended = holdfast("run", job, "--state-dir", state, "--faults", faults)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.index("Preflight: ") < ended.stderr.index("SelfTest of") < ended.stderr.index("  round ")
    incidents = json.loads(holdfast("incidents", "--state-dir", state, "-o", "json").stdout)
    (incident,) = (each for each in incidents if each["kind"] == "SelfTest")
    assert incident["culprit"]["node"] == "node-2"
    assert incident["culprit"]["gpu"] == gpu_uuid("node-2", 0)
    assert incident["state"] == "Recovered"
    why = holdfast("why", incident["id"], "--state-dir", state).stdout
    assert "of 149 runs gave another result" in why
    assert "evict node node-2" in why
    assert_every_gpu_second_is_booked(state)


def test_the_links_between_nodes_are_tested_before_the_first_round(tmp_path: Path) -> None:
    startup = "{preflight: none, links: {flow: 300ms, gang: 300ms, timeout: 1m}}"
    job = job_file(tmp_path, script=TOY, words=["5"], nodes="{min: 2, max: 2}", startup=startup)
    state = tmp_path / "state"
    ended = holdfast("run", job, "--state-dir", state)
    assert ended.returncode == 0, ended.stderr
    waits = "waiting for the test of the links between node-1, node-2"
    assert ended.stderr.index(waits) < ended.stderr.index("  round ")
    told = holdfast("status", "--state-dir", state).stdout
    pairs, rings = (f"{what} are too few to compare" for what in ("1 links", "2 ways in rings"))
    assert f"links          {pairs} with each other: 6 are needed; {rings}" in told, told
    assert_every_gpu_second_is_booked(state)


def test_one_that_was_not_tested_is_convicted_by_what_it_computes_between_two_steps(tmp_path: Path) -> None:
    (tmp_path / "rounds").mkdir()
    job = job_file(
        tmp_path,
        script=TRAINS,
        words=[str(tmp_path / "rounds")],
        nodes="{min: 3, max: 3}",
        more="  faultPolicy: {corruption: {fingerprintEverySteps: 1}}\n",
    )
    faults = tmp_path / "faults.yaml"
    faults.write_text("- {at: {step: 0}, do: compute-wrong, node: node-3}\n")
    state = tmp_path / "state"
    ended = holdfast("run", job, "--state-dir", state, "--faults", faults)
    assert ended.returncode == 0, ended.stderr
    (incident,) = json.loads(holdfast("incidents", "--state-dir", state, "-o", "json").stdout)
    assert (incident["kind"], incident["cause"], incident["state"]) == ("Corruption", "device vote", "Recovered")
    assert incident["culprit"]["node"] == "node-3"
    assert incident["actions"][0]["does"] == "evict node node-3"


def test_a_full_self_test_of_a_node_that_trains_says_what_it_costs_and_the_status_shows_it(tmp_path: Path) -> None:
    job = job_file(tmp_path, script=TOY, words=["1000000"], nodes="{min: 1, max: 1, spares: 1}")
    state = tmp_path / "state"

    def told(*words: str) -> str:
        return holdfast(*words, "--state-dir", state).stdout

    def trains_on() -> list[str]:
        return [each["node"] for each in json.loads(told("ranks", "-o", "json") or "[]")]

    with running("run", job, "--state-dir", state):
        wait_until(lambda: "1 of 1 ready, 1 spare" in told("status"), "a spare beside the node that trains")
        wait_until(lambda: "Running (" in told("status"), "a job that trains")
        (node,) = trains_on()
        assert "self-tests" not in told("status")
        test = ("self-test", node, "--level", "full", "--reason", "it is slow")
        foretold = told(*test, "--dry-run")
        asked = told(*test)
        assert asked.startswith(
            f"Done: full self-test of node {node}, at most 600 s on GPUs: once a checkpoint is"
        )
        assert "its ranks move to a spare" in asked
        status = told("status")
        assert f"self-tests     full of {node}, asked " in status
        turns = "waits for the checkpoint that round [0-9]+ was asked for|no ranks before"  # before, and after it
        assert re.search(rf"\(requested: it is slow\); ({turns})\n", status), status
        assert "full self-test pending, requested: it is slow" in told("nodes")
        assert "is asked for one more checkpoint, which is waited for first" in foretold
        assert "runs the full self-test of its devices, at most 600 s on GPUs" in foretold
        wait_until(lambda: trains_on() not in ([], [node]), "the spare that takes the ranks")
