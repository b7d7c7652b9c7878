"""A training script for tests: every step is one all-reduce and a short sleep.

Its faults are injected by name: `--raise-at N` raises ValueError before step N on rank 1, `--swallow` catches
every Exception of a step and goes on, `--compute` never calls a collective.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist

from holdfast.trainer import Assignment, Phase, Run

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=1_000_000)
parser.add_argument("--pace", type=float, default=0.005)
parser.add_argument("--raise-at", type=int, default=-1)
parser.add_argument("--swallow", action="store_true")
parser.add_argument("--compute", action="store_true")
arguments = parser.parse_args()

torch.set_num_threads(1)
run = Run(timeout_s=60)


def train(part: Assignment) -> None:
    assert part.restore.step is None or part.restore.step >= 0
    subgroup = dist.new_group(list(range(part.world_size)))
    total = torch.zeros(1000)
    for step in range(arguments.steps):
        if step == arguments.raise_at and part.rank == 1:
            raise ValueError("the script's own fault")
        run.phase(Phase.FORWARD)
        total.fill_(1.0)
        try:
            if not arguments.compute:
                dist.all_reduce(total)
                dist.all_reduce(total, group=subgroup)
        except Exception:
            if not arguments.swallow:
                raise
        time.sleep(arguments.pace)
        run.step(step, loss=total.mean(), tokens=1000)


run.enter(train)
print("finished", os.getpid(), flush=True)
