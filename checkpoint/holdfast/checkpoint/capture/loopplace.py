"""Where a loop is that counts its steps by itself, and whose batches have numbers: the same on every rank."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

NAME = "loop"
"""Of the one object that it is in a checkpoint."""


@dataclass(slots=True)
class LoopPlace:
    """`step` is the last one that is complete, `batches` how many batches the loop has taken by then, those passed
    over among them, and `taken` how many that makes over all ranks, which may have been fewer for a while. `moved`
    is called when it is given another place.
    """

    step: int = 0
    batches: int = 0
    taken: int = 0
    moved: Callable[[], object] = lambda: None

    def completed(self, step: int, ranks: int) -> None:
        """`step`, of one batch more, is complete; so many ranks had a part in it."""
        self.step = step
        self.batches += 1
        self.taken += ranks

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "batches": self.batches, "taken": self.taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self.batches, self.taken = int(state["step"]), int(state["batches"]), int(state["taken"])
        self.moved()
