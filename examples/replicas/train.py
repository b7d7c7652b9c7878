"""Replica groups: a small model, sharded with FSDP2 within a group, its gradients averaged between groups.

    holdfast run examples/replicas/job.yaml

A worker that is killed takes its group out; the others go on with the next step. See docs/replicagroups.md. The
same script is one group under plain python and torchrun. What Holdfast asks of it is marked with "Holdfast:".
"""

import argparse
import hashlib
import json
import os
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

from holdfast.checkpoint import Checkpointer
from holdfast.trainer import Assignment, OuterStep, Replicas, Run

FEATURES, CLASSES = 64, 16


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small model in replica groups.")
    parser.add_argument("--steps", type=int, default=400, help="optimizer steps in all")
    parser.add_argument("--batch", type=int, default=32, help="samples per step over all groups together")
    parser.add_argument(
        "--outer-every", type=int, metavar="STEPS", help="outer steps, instead of an average a step"
    )
    parser.add_argument("--save-every", type=int, default=50, metavar="STEPS", help="save after so many steps")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument(
        "--pace", type=float, default=0.05, metavar="SECONDS", help="a step takes at least so long"
    )
    parser.add_argument("--trace", type=Path, help="folder for a file per process: each step, when, a digest")
    return parser.parse_args()


def samples(number: int, place: int, places: int, size: int) -> tuple[Tensor, Tensor]:
    """One rank's share of the batch of that number: those that are there divide it, so that none is left out."""
    dice = torch.Generator().manual_seed(number)
    values = torch.randn(size, FEATURES, generator=dice)
    wanted = values[:, :CLASSES].argmax(dim=1)
    return values[place::places], wanted[place::places]


def build(width: int) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, width), nn.GELU(), nn.Linear(width, CLASSES))
    if torch.distributed.get_world_size() > 1:
        for layer in (model[0], model[2]):
            fully_shard(layer)
        fully_shard(model)
    return model


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Of every bit of the model and the optimizer that this rank holds."""
    found = hashlib.blake2b(digest_size=8)
    for parameter in model.parameters():
        for each in (
            parameter,
            *(kept for kept in optimizer.state[parameter].values() if isinstance(kept, Tensor)),
        ):
            local = getattr(each, "_local_tensor", each)
            found.update(local.detach().contiguous().numpy().tobytes())
    return found.hexdigest()


def note(trace: Path, run: Run, replicas: Replicas, held: str) -> None:
    """One line on the step that is complete."""
    part = run.assignment
    line = {"step": replicas.step, "at": time.monotonic(), "rank": part.rank, "inside": part.inside().rank}
    line |= {"round": part.round, "group": replicas.index, "groups": replicas.count, "digest": held}
    with trace.open("a") as file:
        file.write(json.dumps(line) + "\n")


def main() -> None:
    arguments = parse_arguments()
    run = Run()

    def train(part: Assignment) -> None:
        rank, size = part.inside().rank, part.inside().world_size
        model = build(arguments.width)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        trace = arguments.trace / f"process-{os.getpid()}.jsonl" if arguments.trace else None
        outer = OuterStep(arguments.outer_every) if arguments.outer_every else None
        # Holdfast: restores in every group, or copies from one that trains; one group saves.
        saves = Checkpointer(run, model=model, optimizer=optimizer, every_steps=arguments.save_every)
        with Replicas.resumed(run, saves, until=arguments.steps, outer=outer) as replicas:
            while replicas.step < arguments.steps:
                began = time.monotonic()
                place, places = replicas.index * size + rank, replicas.count * size
                values, wanted = samples(saves.batch, place, places, arguments.batch)
                optimizer.zero_grad()
                losses = functional.cross_entropy(model(values), wanted, reduction="sum")
                loss = losses * places / arguments.batch  # the mean over all ranks, also where shares are unequal
                with replicas.overlapped():  # Holdfast: gradients go to the other groups meanwhile
                    loss.backward()
                time.sleep(max(0.0, arguments.pace - (time.monotonic() - began)))
                if not replicas.average():  # Holdfast: the mean over the groups that are there
                    continue
                optimizer.step()
                replicas.stepped()  # Holdfast: does nothing without outer steps
                run.step(replicas.step, loss=loss.detach())
                saves.completed(replicas.step)  # Holdfast: saves what is due
                if trace is not None:
                    note(trace, run, replicas, digest(model, optimizer))

    run.enter(train)


if __name__ == "__main__":
    main()
