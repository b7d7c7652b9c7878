"""What a run says and does when the script itself is at fault, and when nobody can see its steps."""

import json
import os
import signal
from pathlib import Path
from typing import Any

from embeddedrun import PATIENCE_S, holdfast, job_file, running, wait_until

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


def test_a_script_that_does_not_compile_ends_the_job_the_second_time_with_its_own_line(tmp_path: Path) -> None:
    job = job_file(tmp_path, script="import os\ndef broken(:\n    pass\n", nodes="{min: 2, max: 2}")
    state = tmp_path / "state"
    ended = holdfast("run", job, "--state-dir", state)
    assert ended.returncode != 0
    told = incidents(state)
    assert {each["kind"] for each in told} == {"UserCode"}
    assert [each["state"] for each in told][-1] == "Paged"
    assert not any(each["state"] == "Recovered" for each in told)
    assert len(told) == 2, "tried once more, without waiting"
    said = ended.stdout + ended.stderr
    assert "every rank failed in one way before it trained, twice: SyntaxError" in said
    error = told[-1]["error"]
    assert "def broken(:" in error
    assert "newborn" not in error
    assert "runpy" not in error
    assert error.count("  File ") == 1


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
