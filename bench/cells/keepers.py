"""What keeps a run's state and brings it back: Holdfast, and what people do with torch alone."""

import os
import random
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from cells.training import EPOCHS, Script, told_epoch
from holdfast.checkpoint import Checkpointer, Standalone


class Keeper(Protocol):
    """Training from where `folder` says to step `until`, saved there: step and batch of each. What was restored is
    in the script before the first of them.
    """

    def steps(self, script: Script, folder: Path, until: int) -> Iterator[tuple[int, Tensor]]: ...


class Holdfast:
    """The Checkpointer, as docs/checkpoints.md has it."""

    def steps(self, script: Script, folder: Path, until: int) -> Iterator[tuple[int, Tensor]]:
        checkpointer = Checkpointer(
            Standalone(str(folder)),
            model=script.model,
            optimizer=script.optimizer,
            scheduler=script.schedule,
            scaler=script.scaler,
            extra=script.extra,
            every_steps=until,
        )
        loader = script.loader()
        for epoch in range(checkpointer.epoch, EPOCHS):
            told_epoch(loader, epoch)
            yield from checkpointer.steps(loader, until=until)
        checkpointer.close()


class PlainDcp:
    """torch.distributed.checkpoint as its recipe has it, with what a careful script adds: schedule, scaler, what
    else it keeps, the place in the data and the random numbers, each rank's own.

    Source: https://docs.pytorch.org/tutorials/recipes/distributed_checkpoint_recipe.html
    """

    def steps(self, script: Script, folder: Path, until: int) -> Iterator[tuple[int, Tensor]]:
        loader, step, position, first = script.loader(), 0, 0, 0
        named: dict[str, Any] = {"schedule": script.schedule, "scaler": script.scaler, **script.extra}
        others = {name: each for name, each in named.items() if each is not None}
        began = _generators()
        if (folder / ".metadata").exists():
            state = self._state(script, others)
            dcp.load(state, checkpoint_id=folder)
            set_state_dict(
                script.model,
                script.optimizer,
                model_state_dict=state["model"],
                optim_state_dict=state["optimizer"],
            )
            for name, each in others.items():
                each.load_state_dict(state["others"][name])
            rank = dist.get_rank() if dist.is_initialized() else 0
            world = dist.get_world_size() if dist.is_initialized() else 1
            place = torch.load(folder / f"rank-{min(rank, world - 1)}.pt", weights_only=False)
            step, first, position, began, now = (place[key] for key in ("step", "epoch", "taken", "began", "now"))
            _reinstate(began)
        for epoch in range(first, EPOCHS):
            told_epoch(loader, epoch)
            began = _generators() if epoch > first or not position else began
            source = iter(loader)
            if epoch == first and position:
                for _ in islice(source, position):
                    pass
                _reinstate(now)
            taken = position if epoch == first else 0
            for batch in source:
                step, taken = step + 1, taken + 1
                yield step, batch
                if step == until:
                    rank = dist.get_rank() if dist.is_initialized() else 0
                    state = self._state(script, others)
                    dcp.save(state, checkpoint_id=folder)
                    place = {"step": step, "epoch": epoch, "taken": taken, "began": began, "now": _generators()}
                    torch.save(place, folder / f"rank-{rank}.pt")
                    return

    def _state(self, script: Script, others: Mapping[str, Any]) -> dict[str, Any]:
        model, optimizer = get_state_dict(script.model, script.optimizer)
        kept = {name: each.state_dict() for name, each in others.items()}
        return {"model": model, "optimizer": optimizer, "others": kept}


KEEPERS: Mapping[str, type[Holdfast] | type[PlainDcp]] = {"holdfast": Holdfast, "dcp": PlainDcp}


def _generators() -> tuple[Any, ...]:
    return torch.get_rng_state(), random.getstate(), np.random.get_state()


def _reinstate(generators: tuple[Any, ...]) -> None:
    torch.set_rng_state(generators[0])
    random.setstate(generators[1])
    np.random.set_state(generators[2])


def quiet() -> None:
    """What libraries print of each cell goes nowhere."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
