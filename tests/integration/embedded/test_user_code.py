"""What a run says and does when the script itself is at fault, and when nobody can see its steps."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from embeddedrun import PATIENCE_S, holdfast, job_file, running, wait_until

pytestmark = pytest.mark.long

RAISES = """
import sys, time
from pathlib import Path
import torch, torch.distributed as dist
from holdfast.trainer import Run

run = Run()
once = Path(sys.argv[1])

def batch(step):
    if step == 7 and dist.get_rank() == 1 and not once.exists():
        once.touch()
        return {}["tokens"]

def train(assignment):
    for step in range(1, 31):
        batch(step)
        dist.all_reduce(torch.ones(1))
        time.sleep(0.02)
        run.step(step, loss=1.0 / step)

run.enter(train)
"""

UNSEEN = """
import os, sys, time
from pathlib import Path
import torch.distributed as dist

dist.init_process_group("gloo")
Path(sys.argv[1], f"pid-{os.environ['HOLDFAST_ROUND']}-{os.environ['RANK']}").write_text(str(os.getpid()))
while not Path(sys.argv[1], "end").exists():
    dist.barrier()
    time.sleep(0.1)
"""


ENDS = """
import os, sys, time
import torch, torch.distributed as dist
from holdfast.trainer import Run

run = Run()

def train(assignment):
    for step in range(1, 31):
        if step == 21 and dist.get_rank() in map(int, sys.argv[2]):
            os._exit(int(sys.argv[1]))
        dist.all_reduce(torch.ones(1))
        time.sleep(0.01)
        run.step(step, loss=1.0 / step)

run.enter(train)
"""


def incidents(state: Path) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = json.loads(
        holdfast("incidents", "--state-dir", state, "-o", "json").stdout or "[]"
    )
    return told


def test_an_exception_of_one_rank_blames_no_node_and_why_shows_where_it_was_raised(tmp_path: Path) -> None:
    job = job_file(tmp_path, script=RAISES, words=[str(tmp_path / "once")], nodes="{min: 2, max: 2}")
    state = tmp_path / "state"
    ended = holdfast("run", job, "--state-dir", state)
    assert ended.returncode == 0, ended.stderr
    (incident,) = incidents(state)
    assert (incident["kind"], incident["state"]) == ("UserCode", "Recovered")
    assert incident["culprit"].get("node") is None
    assert incident["cause"].startswith("KeyError: 'tokens' (train.py:13 in batch)")
    why = holdfast("why", incident["id"], "--state-dir", state).stdout
    assert "no node is to blame" in why
    assert 'return {}["tokens"]' in why
    assert "batch(step)" in why
    assert "holdfast/trainer" not in why
    assert "runpy" not in why


def test_a_script_that_does_not_compile_ends_the_job_at_once_with_its_own_line(tmp_path: Path) -> None:
    job = job_file(tmp_path, script="import os\ndef broken(:\n    pass\n", nodes="{min: 2, max: 2}")
    state = tmp_path / "state"
    ended = holdfast("run", job, "--state-dir", state)
    assert ended.returncode != 0
    told = incidents(state)
    assert [(each["kind"], each["state"]) for each in told] == [("UserCode", "Paged")]
    assert len(told[0]["actions"]) == 1, "another try would find the same"
    said = ended.stdout + ended.stderr
    assert "the script cannot start: SyntaxError" in said
    assert "mend the line" in said
    error = told[-1]["error"]
    assert "def broken(:" in error
    assert "launch/child" not in error
    assert "runpy" not in error
    assert error.count("  File ") == 1
    wrote = holdfast("logs", "--state-dir", state).stdout
    assert "def broken(:" in wrote
    assert "launch/child" not in wrote
    assert "runpy" not in wrote


@pytest.mark.parametrize(
    ("code", "ranks", "cause"),
    [
        ("0", "1", "exit code 0 before Run.enter had returned"),
        ("2", "01", "exit code 2"),
    ],
    ids=["a rank that ends with success before the others", "an exit code of all ranks in training"],
)
def test_an_end_that_the_script_decides_blames_no_node_and_stops_the_second_time(
    tmp_path: Path, code: str, ranks: str, cause: str
) -> None:
    job = job_file(tmp_path, script=ENDS, words=[code, ranks], nodes="{min: 2, max: 2}")
    state = tmp_path / "state"
    ended = holdfast("run", job, "--state-dir", state)
    assert ended.returncode != 0
    told = incidents(state)
    assert {(each["kind"], each["cause"], each["culprit"].get("node")) for each in told} == {
        ("UserCode", cause, None)
    }
    assert told[-1]["state"] == "Paged"
    assert len(told) <= 3, "the second time without a new step; the newest step may be told late"
    assert "the script failed in one way twice" in ended.stdout + ended.stderr


def test_ranks_that_are_all_killed_at_the_first_line_cost_no_node_its_place_and_stop_the_second_time(
    tmp_path: Path,
) -> None:
    script = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
    job = job_file(tmp_path, script=script, nodes="{min: 2, max: 2, spares: 1}")
    state = tmp_path / "state"
    ended = holdfast("run", job, "--state-dir", state)
    assert ended.returncode != 0
    said = ended.stdout + ended.stderr
    assert "the script failed in one way twice, without a new step in between: signal 9 (SIGKILL)" in said
    assert "out of service" not in said
    assert [each["culprit"].get("node") for each in incidents(state)] == [None]


def test_an_unmodified_script_that_is_killed_twice_within_a_minute_is_healed_twice_and_tells_no_figure(
    tmp_path: Path,
) -> None:
    words = [str(tmp_path)]
    job = job_file(tmp_path, script=UNSEEN, words=words, nodes="{min: 2, max: 2}")
    state = tmp_path / "state"

    def closed(count: int) -> bool:
        told = incidents(state)
        return len(told) == count and told[-1]["state"] == "Recovered"

    def pid(number: int, rank: int) -> Path:
        newest = sorted(tmp_path.glob(f"pid-*-{rank}"), key=lambda each: int(each.name.split("-")[1]))
        return newest[number] if len(newest) > number else tmp_path / "none"

    with running("run", job, "--state-dir", state) as process:
        for kill in range(2):
            wait_until(lambda kill=kill: pid(kill, 1).exists(), f"run {kill} of rank 1")  # type: ignore[misc]
            os.kill(int(pid(kill, 1).read_text()), signal.SIGKILL)
            wait_until(lambda kill=kill: closed(kill + 1), f"the end of incident {kill + 1}")  # type: ignore[misc]
        (tmp_path / "end").touch()
        said = process.communicate(timeout=PATIENCE_S)[0]
    assert process.returncode == 0, said
    assert "workers run again" in said
    assert "backing off" not in said
    told = incidents(state)
    assert [each.get("recovered_at") for each in told] == [None, None]
    why = holdfast("why", told[1]["id"], "--state-dir", state).stdout
    assert "workers run again in round" in why
