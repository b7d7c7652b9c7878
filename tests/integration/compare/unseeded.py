"""Trains a few small runs that seed torch alone, each in a folder of its own below the one that is named."""

import random
import sys
from pathlib import Path

import numpy
import torch
from torch.utils.data import DataLoader, TensorDataset

from holdfast.checkpoint import Checkpointer, Standalone

STEPS = 6
numpy.float32(0)  # in use, and nothing is drawn from its generator


def started(optimizer: type[torch.optim.Optimizer]) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(), torch.nn.Linear(4, 1))
    return model, optimizer(model.parameters(), lr=0.1)  # type: ignore[call-arg]


def trained(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> None:
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()


def over_a_generator(uri: str) -> None:
    model, optimizer = started(torch.optim.SGD)
    saves = Checkpointer(Standalone(), model=model, optimizer=optimizer, uri=uri, every_steps=2, keep=9)
    for _, batch in saves.steps((torch.full((2, 4), 0.1 * each) for each in range(99)), until=STEPS):
        trained(model, optimizer, batch)
    saves.close()


def over_a_shuffled_loader(uri: str) -> None:
    model, optimizer = started(torch.optim.Adam)
    loader = DataLoader(TensorDataset(torch.arange(32.0).reshape(8, 4)), batch_size=2, shuffle=True)
    saves = Checkpointer(Standalone(), model=model, optimizer=optimizer, uri=uri, every_steps=2, keep=9)
    for _ in range(2):
        for _, (batch,) in saves.steps(loader, until=STEPS):
            trained(model, optimizer, batch)
    saves.close()


def counted_by_the_loop(uri: str, *, draws: bool = False) -> None:
    model, optimizer = started(torch.optim.AdamW)
    saves = Checkpointer(Standalone(), model=model, optimizer=optimizer, uri=uri, every_steps=2, keep=9)
    for step in range(saves.resume(until=STEPS) + 1, STEPS + 1):
        trained(model, optimizer, torch.full((2, 4), 0.1 * step))
        if draws:
            random.random()
        saves.completed(step)
    saves.finish()


if __name__ == "__main__":
    root = Path(sys.argv[1])
    over_a_generator(str(root / "generator"))
    over_a_shuffled_loader(str(root / "loader"))
    counted_by_the_loop(str(root / "loop"))
    counted_by_the_loop(str(root / "drawing"), draws=True)
