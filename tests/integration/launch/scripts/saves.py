"""Trains with a Checkpointer until --until, one line of loss a step. Says what it resumed from.

--pace S sleeps in each step; --slow-disk S makes each save take that long.
"""

import argparse
import time
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import nn

from holdfast.api.control import Assignment
from holdfast.checkpoint import Checkpointer
from holdfast.checkpoint.save.persister import SavePoint
from holdfast.trainer import Run

parser = argparse.ArgumentParser()
parser.add_argument("--uri", required=True)
parser.add_argument("--until", type=int, default=1_000_000)
parser.add_argument("--every", type=int, default=None)
parser.add_argument("--keep", type=int, default=None)
parser.add_argument("--pace", type=float, default=0.01)
parser.add_argument("--slow-disk", type=float, default=0.0)
given = parser.parse_args()

torch.set_num_threads(1)
run = Run(timeout_s=60)


def batches(part: Assignment) -> Iterator[torch.Tensor]:
    number = 0
    while True:
        whole = torch.randn(2 * part.world_size, 8, generator=torch.Generator().manual_seed(number))
        yield whole[part.rank :: part.world_size]
        number += 1


def slowly(point: SavePoint) -> None:
    if point is SavePoint.FILE_WRITTEN:
        time.sleep(given.slow_disk)


def sum_over_ranks(loss: torch.Tensor, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """The loss over all ranks, and the gradients in their place, by one collective."""
    whole = torch.cat([loss.reshape(1), *(each.reshape(-1) for each in gradients)])
    dist.all_reduce(whole)
    total, *parts = whole.split([1, *(each.numel() for each in gradients)])
    for each, part in zip(gradients, parts, strict=True):
        each.copy_(part.view_as(each))
    return total


def train(part: Assignment) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    checkpointer = Checkpointer(
        run,
        model=model,
        optimizer=optimizer,
        uri=given.uri,
        every_steps=given.every,
        keep=given.keep,
        reached=slowly,
    )
    for step, batch in checkpointer.steps(batches(part), until=given.until):
        loss = (model(batch) - 1).square().mean()
        loss.backward()
        # Not DDP: after its first step it sums in another order, so that a resumed run differs by a bit.
        gradients = [parameter.grad for parameter in model.parameters()]
        total = sum_over_ranks(loss.detach(), gradients)
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} loss {float(total).hex()}", flush=True)
        time.sleep(given.pace)
        run.step(step, loss=loss)
    checkpointer.close()


run.enter(train)
