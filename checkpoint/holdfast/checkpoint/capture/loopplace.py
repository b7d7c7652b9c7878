"""Where a loop is that counts its steps by itself, and whose batches have numbers: the same on every rank."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from holdfast.checkpoint.capture.cursor import Cursor, cursor_of

NAME = "loop"
"""Of the one object that it is in a checkpoint."""


@dataclass(slots=True)
class LoopPlace:
    """`step` is the last one that is complete, `batches` how many batches the loop has taken by then, those passed
    over among them, and `taken` how many that makes over all ranks, which may have been fewer for a while.
    `cursor` is the same of the pass that the loop says it is in. `moved` is called when it is given another place.
    """

    step: int = 0
    batches: int = 0
    taken: int = 0
    cursor: Cursor = field(default_factory=Cursor)
    moved: Callable[[], object] = lambda: None

    def completed(self, step: int, ranks: int, epoch: int | None = None, *, takers: int | None = None) -> None:
        """`step`, of one batch more, is complete; so many ranks had a part in it. Its batch is of pass `epoch`;
        None: of the same one as the batch before.
        """
        self.step = step
        self.batches += 1
        self.pass_over(1, ranks, epoch, takers=takers)

    def pass_over(self, batches: int, ranks: int, epoch: int | None = None, *, takers: int | None = None) -> None:
        """So many batches of this pass are behind the loop. `takers` ranks took different ones; None: all did."""
        cursor = self.cursor if epoch in (None, self.cursor.epoch) else Cursor(epoch or 0)
        self.cursor = Cursor(cursor.epoch, cursor.taken + batches * (ranks if takers is None else takers))
        self.taken += batches * ranks

    def state_dict(self) -> dict[str, Any]:
        within = self.cursor.plain()
        return {"step": self.step, "batches": self.batches, "taken": self.taken, "within": within}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self.batches, self.taken = int(state["step"]), int(state["batches"]), int(state["taken"])
        # Older checkpoints do not say it: of a loop that tells of no passes all is one.
        self.cursor = cursor_of(state.get("within", {})) or Cursor(0, self.taken)
        self.moved()
