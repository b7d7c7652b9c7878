"""A round that stands still, for three reasons: its incidents say where the ranks were before any was ended."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from embeddedrun import holdfast, job_file, running, wait_until

pytestmark = pytest.mark.long

HANGS = """
import sys, threading, time
from pathlib import Path
import torch, torch.distributed as dist
from holdfast.trainer import Run

run = Run()
folder = Path(sys.argv[1])

def spin():
    while True:
        time.time()

def wait_for_a_lock(lock):
    lock.acquire()

def sum_up():
    dist.all_reduce(torch.ones(4))

def stand_still(step):
    if step == 8:
        dist.broadcast(torch.ones(4), 1)
    elif step == 16:
        spin()
    else:
        lock = threading.Lock()
        lock.acquire()
        wait_for_a_lock(lock)

def train(part):
    for step in range(1, 400):
        done = folder / f"done-{step}"
        if part.rank == 1 and step in (8, 16, 24) and not done.exists():
            done.touch()
            stand_still(step)
        if step == 30 and (folder / "end").exists():
            return
        sum_up()
        time.sleep(0.02 if step < 30 else 0.2)
        run.step(step, loss=1.0)

run.enter(train)
"""


def line_of(words: str) -> int:
    return next(at for at, line in enumerate(HANGS.splitlines(), 1) if words in line)


def told(incident: dict[str, Any], source: str) -> list[str]:
    return [each["says"] for each in incident["evidence"] if each["source"] == source]


Seen = tuple[list[dict[str, Any]], str, str, str]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """The three incidents of one run, and what `stacks`, `flight` and `profile` said while it trained on."""
    folder = tmp_path_factory.mktemp("hangs")
    more = "  faultPolicy: {hang: {timeout: 5s}, straggler: {sustained: 100000steps}}\n"
    state = folder / "state"
    job = job_file(folder, script=HANGS, words=[str(folder)], nodes="{min: 2, max: 2}", more=more)
    with running("run", job, "--state-dir", state):

        def incidents() -> list[dict[str, Any]]:
            printed = holdfast("incidents", "--state-dir", state, "-o", "json").stdout
            return json.loads(printed) if printed.startswith("[") else []

        def all_told() -> bool:
            found = incidents()
            return len(found) == 3 and all(told(each, "stacks") and each["state"] == "Recovered" for each in found)

        wait_until(all_told, "three hangs with stacks")
        stacks = holdfast("stacks", "--state-dir", state).stdout
        flight = holdfast("flight", "--state-dir", state).stdout
        profile = holdfast(
            *("profile", "--ranks", "0,1", "--steps", "2", "--within", "200", "--reason", "why slow"),
            *("--state-dir", state),
        ).stdout
        return incidents(), stacks, flight, profile


def test_another_collective_on_one_rank_is_named_on_both_sides(
    seen: Seen,
) -> None:
    incident = seen[0][0]
    (says,) = told(incident, "collectives")
    assert f"rank 1 issued broadcast of [4] Float at train.py:{line_of('dist.broadcast')} in stand_still" in says
    assert f"rank 0 issued all_reduce of [4] Float at train.py:{line_of('all_reduce(')} in sum_up" in says
    assert any(f"train.py:{line_of('dist.broadcast')} in stand_still" in each for each in told(incident, "stacks"))


@pytest.mark.parametrize(
    ("place", "words", "function"), [(1, "time.time()", "spin"), (2, "    lock.acquire()", "wait")]
)
def test_a_loop_and_a_lock_are_named_by_their_line_and_the_rank_is_behind(
    seen: Seen, place: int, words: str, function: str
) -> None:
    incident = seen[0][place]
    assert incident["culprit"]["rank"] == 1
    (where,) = (each for each in told(incident, "stacks") if each.startswith("rank 1 of 2: "))
    # A loop is somewhere in its two lines.
    lines = {line_of(words), line_of(words) - 1} if function == "spin" else {line_of(words)}
    assert any(where.startswith(f"rank 1 of 2: train.py:{line} in {function}") for line in lines), where
    (behind,) = told(incident, "collectives")
    assert behind.startswith("rank 1 did not reach collective ")


def test_each_is_healed_and_its_stacks_are_of_before_anything_was_ended(seen: Seen) -> None:
    for incident in seen[0]:
        assert incident["state"] == "Recovered"
        taken = {each["at"] for each in incident["evidence"] if each["source"] == "stacks"}
        assert len(taken) == 1
        assert incident["detected_at"] <= taken.pop() <= incident["recovered_at"]


def test_commands_say_where_the_ranks_are_now_while_they_train_on(
    seen: Seen,
) -> None:
    _, stacks, flight, _ = seen
    assert "of 2: " in stacks
    assert "in train, from train.py:" in stacks or "in sum_up, from train.py:" in stacks
    # While they train, one may be in a collective that the other has not come to yet.
    assert flight.startswith(("the last collectives of the 2 of 2 ranks that answered are the same", "rank "))


def test_a_profile_of_some_steps_has_a_trace_and_its_collectives(seen: Seen) -> None:
    _, _, _, profile = seen
    for rank in (0, 1):
        path, size = re.findall(rf"^rank {rank}: (.*) \((.*) MB\)$", profile, re.MULTILINE)[0]
        assert float(size) > 0.0
        trace = json.loads(gzip.decompress(Path(path).read_bytes()))
        assert any(each.get("name") == "gloo:all_reduce" for each in trace["traceEvents"])
    assert re.search(r"2 steps in .* ms: .* ms of collectives, .* not hidden behind computing", profile)
    assert re.search(r"all_reduce of \[4\]: 2 times", profile)
