"""What both training scripts train: a small model, a disk checkpoint every fifth step, a line for every step."""

import os
import time
from pathlib import Path
from typing import Final

import torch
from torch.nn.parallel import DistributedDataParallel

WIDTH: Final = 128
SLEEP_S: Final = 0.02  # what a step waits for its data
CHECKPOINT_EVERY_STEPS: Final = 5


class Marks:
    """What a rank writes down of its steps."""

    def __init__(self, folder: Path, rank: int, world: int) -> None:
        self._log = os.open(folder / "steps.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._rank, self._world = rank, world

    def begun(self, step: int) -> None:
        """Its process group stands and its state is that after `step`."""
        self._write("B", step)

    def stepped(self, step: int) -> None:
        """It has completed `step`."""
        self._write("S", step)

    def _write(self, what: str, step: int) -> None:
        """One write, so that the lines of several ranks do not mix."""
        line = f"{what} {time.monotonic_ns()} {self._rank} {step} {self._world} {os.getpid()}\n"
        os.write(self._log, line.encode())


def new_model() -> torch.nn.Module:
    """The same architecture for all scripts."""
    return torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.ReLU(), torch.nn.Linear(4 * WIDTH, WIDTH)
    )


class Workload:
    """One rank's training, from the newest checkpoint on. Needs the default process group."""

    def __init__(self, folder: Path, rank: int, world: int) -> None:
        self._checkpoint = folder / "checkpoint.pt"
        self._marks = Marks(folder, rank, world)
        self._rank = rank
        model = new_model()
        self._optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        self._model = model
        self.step = self._load()
        self._ddp = DistributedDataParallel(model)
        self._marks.begun(self.step)

    def advance(self) -> float:
        """Train one step; its loss."""
        time.sleep(SLEEP_S)
        batch = torch.randn(16, WIDTH)
        self._optimizer.zero_grad()
        loss = (self._ddp(batch) - batch).square().mean()
        loss.backward()
        self._optimizer.step()
        self.step += 1
        self._marks.stepped(self.step)
        if self._rank == 0 and self.step % CHECKPOINT_EVERY_STEPS == 0:
            self._save()
        return float(loss.item())

    def _load(self) -> int:
        if not self._checkpoint.exists():
            return 0
        state = torch.load(self._checkpoint)
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        return int(state["step"])

    def _save(self) -> None:
        # A name of its own: a supervisor that loses control may run two processes as rank 0.
        fresh = self._checkpoint.with_suffix(f".{os.getpid()}")
        state = {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict(), "step": self.step}
        torch.save(state, fresh)
        fresh.replace(self._checkpoint)
