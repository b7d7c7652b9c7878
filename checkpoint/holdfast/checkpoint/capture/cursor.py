"""Where training is in its data. The one type that loops and adapters save and restore of it."""

from typing import Any

import msgspec


class Cursor(msgspec.Struct, frozen=True):
    """`epoch` is the number of the pass over the data, from 0. `taken` is how much of that pass all ranks have
    taken together: batches, or samples where an adapter says so. `is_over`: the pass has ended.

    A pass that has ended is still the place until the next one begins. What the script does between the two is not
    known to be done, and is done again after a restore.
    """

    epoch: int = 0
    taken: int = 0
    is_over: bool = False

    def each(self, takers: int) -> int:
        """How much of the pass each of so many takers has behind it, in a world of any size. Rounded down: what is
        left over is taken again, and nothing is lost.
        """
        return self.taken // takers

    def plain(self) -> dict[str, Any]:
        """As it is saved."""
        return msgspec.structs.asdict(self)


def cursor_of(saved: dict[str, Any]) -> Cursor | None:
    """What `Cursor.plain` gave, among other keys; None where there is no epoch, as in older checkpoints."""
    return msgspec.convert(saved, Cursor) if "epoch" in saved else None
