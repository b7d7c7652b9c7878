"""A framework in a whole run that loses a node and gets another: each round's ranks see every sample once."""

import json
from pathlib import Path

import pytest
from embeddedrun import holdfast, job_file

pytestmark = pytest.mark.long

ACCELERATE = """
import json, os, sys, time
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

from holdfast.trainer import Run

run = Run()
folder = Path(sys.argv[1])
shrunk = folder / "shrunk"


def train(part):
    has_shrunk = shrunk.exists()
    accelerator = Accelerator(cpu=True)
    numbers = TensorDataset(torch.arange(64.0).unsqueeze(1))
    plain = torch.nn.Linear(1, 1)
    model, optimizer, loader = accelerator.prepare(
        plain, torch.optim.SGD(plain.parameters(), lr=1e-6), DataLoader(numbers, batch_size=4, shuffle=True)
    )
    seen = []
    for step, (batch,) in enumerate(loader, start=1):
        seen += [int(each) for each in batch.flatten()]
        accelerator.backward(model(batch).mean())
        optimizer.step()
        run.step(step, tokens=len(batch))
    told = {"round": part.round, "world": part.world_size, "pid": os.getpid(), "seen": seen}
    (folder / f"round-{part.round}-rank-{part.rank}.json").write_text(json.dumps(told))
    while not (has_shrunk and part.world_size == 2):
        dist.all_reduce(torch.ones(1))
        if part.world_size == 1:
            shrunk.touch()
        time.sleep(0.02)
        step += 1
        run.step(step, tokens=4)


run.enter(train)
"""


def test_accelerate_sees_every_sample_once_after_a_shrink_and_after_the_growth_that_follows(
    tmp_path: Path,
) -> None:
    told = tmp_path / "told"
    told.mkdir()
    job = job_file(tmp_path, script=ACCELERATE, words=[str(told)], nodes="{min: 1, max: 2}")
    faults = tmp_path / "faults.yaml"
    faults.write_text("- {at: {step: 40}, do: kill-node, rank: 1}\n")
    ended = holdfast("run", job, "--state-dir", tmp_path / "state", "--faults", faults)
    assert ended.returncode == 0, ended.stderr

    rounds: dict[int, list[dict]] = {}
    for file in told.glob("round-*.json"):
        epoch = json.loads(file.read_text())
        rounds.setdefault(epoch["round"], []).append(epoch)
    whole = [epochs for _, epochs in sorted(rounds.items()) if len(epochs) == epochs[0]["world"]]
    assert [len(epochs) for epochs in whole] == [2, 1, 2]
    for epochs in whole:
        assert sorted(number for epoch in epochs for number in epoch["seen"]) == list(range(64))
    survivor = whole[1][0]["pid"]
    assert all(survivor in {epoch["pid"] for epoch in epochs} for epochs in whole), "it went on in its process"
