"""A launcher that is stopped for a while: its connection stays open, and it says nothing."""

import contextlib
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from embeddedrun import PATIENCE_S, family, holdfast, job_file, running, wait_until

TRAINS = """
import sys, time
from pathlib import Path
import torch, torch.distributed as dist
from holdfast.trainer import Run

run = Run()

def train(assignment):
    step, ends = 0, torch.zeros(1)
    while not ends:
        step += 1
        ends[0] = Path(sys.argv[1], "end").exists()
        dist.all_reduce(ends)
        time.sleep(0.02)
        run.step(step, loss=1.0 / step)

run.enter(train)
"""


def told(what: str, state: Path) -> Any:
    return json.loads(holdfast(what, "--state-dir", state, "-o", "json").stdout or "[]")


def launchers(pids: list[int]) -> list[int]:
    return [pid for pid in pids if b"holdfast.agent.launch\0" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def go_on(pid: int) -> None:
    """Where the others train without it, the local cluster has put another launcher in its place by now."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize(("seconds", "nodes"), [(4.0, 1), (6.0, 3)])
def test_a_launcher_that_was_stopped_joins_anew_and_the_job_trains_on(
    tmp_path: Path, seconds: float, nodes: int
) -> None:
    job = job_file(tmp_path, script=TRAINS, words=[str(tmp_path)], nodes=f"{{min: 1, max: {nodes}}}")
    state = tmp_path / "state"

    def trains() -> bool:
        status = told("status", state)
        return bool(status) and status["phase"] == "Running" and status["members"]["ready"] == nodes

    def recovered() -> bool:
        states = [(each["kind"], each["state"]) for each in told("incidents", state)]
        return bool(states) and all(each == ("MemberLost", "Recovered") for each in states)

    with running("run", job, "--state-dir", state) as process:
        wait_until(trains, "the job to train on all nodes")
        stopped = launchers(family(process))[-1]
        os.kill(stopped, signal.SIGSTOP)
        threading.Timer(seconds, go_on, (stopped,)).start()
        wait_until(recovered, "the end of the incident")
        wait_until(trains, "the launcher to be a member with ranks again")
        (tmp_path / "end").touch()
        said = process.communicate(timeout=PATIENCE_S)[0]
    assert process.returncode == 0, said
