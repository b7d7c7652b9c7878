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

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("own_command_lines")]  # a launcher is found by its own

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


def lives_through(folder: Path, nodes: str, seconds: float, more: str = "") -> tuple[int, list[int]]:
    """One launcher of a job is stopped for so long; its process, and those of all once they train again."""
    job = job_file(folder, script=TRAINS, words=[str(folder)], nodes=nodes, more=more)
    state = folder / "state"

    def trains() -> bool:
        status = told("status", state)
        return (
            bool(status)
            and status["phase"] == "Running"
            and status["members"]["ready"] == status["members"]["wanted"]
        )

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
        there = launchers(family(process))
        (folder / "end").touch()
        said = process.communicate(timeout=PATIENCE_S)[0]
    assert process.returncode == 0, said
    return stopped, there


@pytest.mark.parametrize(("seconds", "nodes"), [(4.0, 1), (6.0, 3)])
def test_a_launcher_that_was_stopped_joins_anew_and_the_job_trains_on(
    tmp_path: Path, seconds: float, nodes: int
) -> None:
    lives_through(tmp_path, f"{{min: 1, max: {nodes}}}", seconds)


# Ten times as long as it takes to count as lost: as 30 s are with the 3 s that a job has unasked. Of what else
# goes by time, 15 s are like 30 s too: beyond the 10 s after which the watchdog gives up a connection that the
# other side does not close, and within the half minute for which a lost member that is needed may come back.
SECONDS, LOST_S = 15.0, 1.5


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_launcher_that_was_stopped_ten_times_as_long_as_it_may_is_told_and_takes_its_old_place(
    tmp_path: Path, nodes: int
) -> None:
    heartbeat = f"{{interval: 500ms, lost: {LOST_S * 1000:.0f}ms}}"
    needs_all = f"{{min: {nodes}, max: {nodes}}}"
    stopped, there = lives_through(
        tmp_path, needs_all, SECONDS, more=f"  faultPolicy: {{heartbeat: {heartbeat}}}\n"
    )
    assert stopped in there, "the same process goes on"
    assert len(there) == nodes
    logs = (tmp_path / "state" / "logs").glob("*.launcher.log")
    told_so = [log.name for log in logs if "counted as lost; join again" in log.read_text()]
    assert told_so
