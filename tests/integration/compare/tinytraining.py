"""A training script that is as small as one can be and still has modules, an optimizer and a checkpoint."""

import argparse

import torch
from torch import Tensor
from torch.nn import functional

from holdfast.checkpoint import Checkpointer
from holdfast.trainer import Assignment, Run

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--clip", type=float, default=100.0)
parser.add_argument("--checkpoint")
parser.add_argument("--api-key", default="")
given = parser.parse_args()
run = Run(backend="gloo")
run.configure(vars(given))


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(4, 8), torch.nn.Linear(8, 4)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.down(functional.gelu(self.up(hidden)))


def train(part: Assignment) -> None:
    torch.manual_seed(given.seed)
    model = torch.nn.Sequential(Block(), Block(), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [torch.full((2, 4), 0.1 * number) for number in range(1, 20)]
    saves = Checkpointer(run, model=model, optimizer=optimizer, uri=given.checkpoint, every_steps=2, keep=9)
    for step, batch in saves.steps(batches, until=8):
        optimizer.zero_grad()
        loss = (model(batch) - 3.0).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), given.clip)
        optimizer.step()
        run.step(step, loss=loss, grad_norm=norm)
    saves.close()


run.enter(train)
