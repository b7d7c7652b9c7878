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
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

from holdfast.api.round import Tier
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


def samples(step: int, place: int, places: int, size: int) -> tuple[Tensor, Tensor]:
    """One rank's share of the batch of `step`: those that are there divide it, so that none of it is left out."""
    dice = torch.Generator().manual_seed(step)
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


def folder_of(part: Assignment) -> Path | None:
    """Where this job keeps its checkpoints; None where nobody says so."""
    place = part.restore.uri.removeprefix("file://")
    return Path(place) if place else None


def save(folder: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> Path:
    """All ranks of one group together. What `newest` names is whole."""
    place = folder / f"step-{step}"
    weights, kept = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": kept}, checkpoint_id=place)
    if torch.distributed.get_rank() == 0:
        written = folder / "newest.new"
        written.write_text(str(step))
        written.replace(folder / "newest")
    return place


def load(folder: Path | None, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """The step that was restored, 0: none."""
    newest = folder / "newest" if folder is not None else None
    if folder is None or newest is None or not newest.exists():
        return 0
    step = int(newest.read_text())
    weights, kept = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": kept}
    dcp.load(state, checkpoint_id=folder / f"step-{step}")
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    return step


def main() -> None:
    arguments = parse_arguments()
    run = Run()

    def train(part: Assignment) -> None:
        rank, size = part.inside().rank, part.inside().world_size
        model = build(arguments.width)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        trace = arguments.trace / f"process-{os.getpid()}.jsonl" if arguments.trace else None
        folder, step = folder_of(part), 0
        if part.restore.tier is not Tier.PEER:  # Holdfast: else the state comes from another group, by itself
            step = load(folder, model, optimizer)
            run.restored(step or None)
        outer = OuterStep(arguments.outer_every) if arguments.outer_every else None
        with Replicas(run, model=model, optimizer=optimizer, step=step, outer=outer) as replicas:  # Holdfast
            while replicas.step < arguments.steps:
                began = time.monotonic()
                place, places = replicas.index * size + rank, replicas.count * size
                values, wanted = samples(replicas.step + 1, place, places, arguments.batch)
                optimizer.zero_grad()
                loss = functional.cross_entropy(model(values), wanted)
                loss.backward()
                time.sleep(max(0.0, arguments.pace - (time.monotonic() - began)))
                if not replicas.average():  # Holdfast: the mean over the groups that are there
                    continue
                optimizer.step()
                replicas.stepped()  # Holdfast: does nothing without outer steps
                run.step(replicas.step, loss=loss.detach())
                # Holdfast: one group saves for all, and which one that is may change from step to step.
                asked = run.save_due(replicas.step)
                due = asked is not None or replicas.step % arguments.save_every == 0
                if folder is not None and replicas.index == 0 and due:
                    saved = save(folder, replicas.step, model, optimizer)
                    if rank == 0:
                        run.committed(replicas.step, str(saved), wanted=asked)
                if trace is not None:
                    note(trace, run, replicas, digest(model, optimizer))

    run.enter(train)


if __name__ == "__main__":
    main()
