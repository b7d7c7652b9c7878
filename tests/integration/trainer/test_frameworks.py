"""Frameworks over rounds of changing size: a worker that goes on in its process sees its share of every epoch."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from trainer_fake_launcher import DEADLINE_S, FakeLauncher, Worker

pytestmark = pytest.mark.long

WORKER = Path(__file__).with_name("framework_worker.py")
EVERY_SAMPLE = list(range(64))


def epoch(workers: list[Worker], round: int) -> list[dict[str, Any]]:
    """What each of the workers says of its epoch in a round, once all have said it."""
    deadline = time.monotonic() + DEADLINE_S
    files = [worker.run_directory / f"round-{round}.json" for worker in workers]
    while not all(file.exists() for file in files):
        for worker in workers:
            if worker.process.poll() is not None:
                raise AssertionError(worker.process.log.read_text())
        assert time.monotonic() < deadline, [file for file in files if not file.exists()]
        time.sleep(0.05)
    return [json.loads(file.read_text()) for file in files]


def every_sample_once(told: list[dict[str, Any]]) -> bool:
    shares = [sorted(each["seen"]) for each in told]
    return sorted(number for share in shares for number in share) == EVERY_SAMPLE and {
        len(share) for share in shares
    } == {64 // len(shares)}


@pytest.mark.parametrize("framework", ["sampler", "torchdata", "accelerate", "lightning", "transformers"])
def test_every_sample_of_an_epoch_is_seen_once_whatever_the_world_was_before(
    tmp_path: Path, framework: str
) -> None:
    with FakeLauncher(tmp_path) as launcher:
        stays, goes = launcher.start(2, WORKER, framework, nodes=True)
        launcher.show(0, [goes, stays])
        assert every_sample_once(epoch([goes, stays], 0))
        launcher.end(0, [goes, stays])
        launcher.show(1, [stays])
        assert every_sample_once(epoch([stays], 1))
        (comes,) = launcher.start(1, WORKER, framework, nodes=True)
        launcher.end(1, [stays])
        launcher.show(2, [comes, stays])
        told = epoch([comes, stays], 2)
        assert every_sample_once(told)
        new, old = (each["environment"] for each in told)
        assert {name for name in new if new[name] != old[name]} == {
            *("RANK", "ROLE_RANK", "GROUP_RANK", "HOLDFAST_RANK")
        }
        assert (old["RANK"], old["WORLD_SIZE"], old["HOLDFAST_ROUND"]) == ("1", "2", "2")
