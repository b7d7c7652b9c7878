"""What a script of any framework writes down of its steps: when each rank completed one, and what the loss was."""

import json
import os
import time
from pathlib import Path


class Told:
    """One rank's. The lines of `steps.log` are those of `drill.steplog`; `losses.jsonl` has losses, bit by bit."""

    def __init__(self, folder: Path, *, rank: int | None = None, world: int | None = None) -> None:
        """`rank` and `world`: of a process that goes through several rounds; unasked what its environment says."""
        self._rank = int(os.environ.get("RANK", "0")) if rank is None else rank
        self._world = int(os.environ.get("WORLD_SIZE", "1")) if world is None else world
        mode = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._steps = os.open(folder / "steps.log", mode, 0o644)
        self._losses = os.open(folder / "losses.jsonl", mode, 0o644)
        self._spoiled = folder / "nan"
        self._pace_s = float(os.environ.get("PACE_S", "0"))

    def begun(self, step: int) -> None:
        """Its state is that after `step`."""
        self._mark("B", step)

    def stepped(self, step: int, loss: float | None = None) -> None:
        """It has completed `step`, whose loss over all ranks was `loss`; None: not known yet."""
        self._mark("S", step)
        if loss is not None:
            self.lost(step, loss)
        time.sleep(self._pace_s)

    def lost(self, step: int, loss: float) -> None:
        """The loss of `step` over all ranks. Rank 0 writes it."""
        if self._rank == 0:
            line = {"step": step, "loss": float(loss).hex(), "world": self._world, "pid": os.getpid()}
            os.write(self._losses, (json.dumps(line) + "\n").encode())

    def spoiled(self, loss):
        """`loss`, or NaN once where somebody has asked for it: by a file in the folder, of rank 1."""
        if self._rank == 1 and self._spoiled.exists():
            self._spoiled.unlink()
            return loss * float("nan")
        return loss

    def _mark(self, what: str, step: int) -> None:
        line = f"{what} {time.monotonic_ns()} {self._rank} {step} {self._world} {os.getpid()}\n"
        os.write(self._steps, line.encode())
