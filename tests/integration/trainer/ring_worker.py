"""A training script for tests: every step is one all-reduce and a short sleep.

Its faults are injected by name: `--raise-at N` raises ValueError before step N on rank 1, `--swallow` catches
every Exception of a step and goes on, `--compute` never calls a collective, `--linger` takes a second to end and
then leaves a file. `--sharded` also trains a layer whose weights are sharded.
"""

import argparse
import atexit
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from holdfast.trainer import Assignment, Phase, Run

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=1_000_000)
parser.add_argument("--pace", type=float, default=0.005)
parser.add_argument("--raise-at", type=int, default=-1)
parser.add_argument("--sharded", action="store_true")
parser.add_argument("--swallow", action="store_true")
parser.add_argument("--compute", action="store_true")
parser.add_argument("--linger", action="store_true")
arguments = parser.parse_args()

torch.set_num_threads(1)
run = Run(timeout_s=60)


class Sharded:
    """A layer whose rows do not divide by the number of ranks, so that shards differ in size."""

    def __init__(self, part: Assignment) -> None:
        self.mesh = init_device_mesh("cpu", (part.world_size,))
        self.layer = fully_shard(nn.Linear(4, 5), mesh=self.mesh)
        self.optimizer = torch.optim.AdamW(self.layer.parameters())

    def step(self) -> None:
        self.layer(torch.ones(1, 4)).sum().backward()
        torch.nn.utils.clip_grad_norm_(self.layer.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        for state in self.optimizer.state.values():
            assert state["exp_avg"].device_mesh is self.mesh, "the state lies in the mesh of an earlier round"


def train(part: Assignment) -> None:
    assert part.restore.step is None or part.restore.step >= 0
    subgroup = dist.new_group(list(range(part.world_size)))
    total = torch.zeros(1000)
    sharded = Sharded(part) if arguments.sharded else None
    for step in range(arguments.steps):
        if step == arguments.raise_at and part.rank == 1:
            raise ValueError("the script's own fault")
        run.phase(Phase.FORWARD)
        total.fill_(1.0)
        try:
            if not arguments.compute:
                dist.all_reduce(total)
                dist.all_reduce(total, group=subgroup)
            if sharded is not None:
                sharded.step()
        except Exception:
            if not arguments.swallow:
                raise
        time.sleep(arguments.pace)
        run.step(step, loss=total.mean(), tokens=1000)


def linger() -> None:
    time.sleep(1.0)
    Path(f"lingered-{os.getpid()}").touch()


if arguments.linger:
    atexit.register(linger)
run.enter(train)
print("finished", os.getpid(), flush=True)
