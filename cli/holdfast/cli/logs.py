"""What is asked of workers' logs, and which of a rank's processes is meant."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from holdfast.api.errors import InvalidInput, Problem, Unavailable

# As kubectl does for a selector: of several ranks only so much each, of one everything.
TAIL_OF_SEVERAL: Final = 10


class Which(Enum):
    """Which process of a rank."""

    NEWEST = "newest"
    PREVIOUS = "previous"  # the one before the last restart


class Ending(Enum):
    """When to stop."""

    AT_END = "at end"  # of what is there now
    FOLLOW = "follow"  # with the run, or the person


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRequest:
    """`rank` and `node` None: every one. `tail` is in lines of each rank, None for all of one rank; `since_s` is
    how far back."""

    rank: int | None = None
    node: str | None = None
    which: Which = Which.NEWEST
    tail: int | None = None
    since_s: float | None = None
    ending: Ending = Ending.AT_END

    def lines_of_each(self, sources: int) -> int | None:
        """How many lines of each of so many sources, None for all."""
        return TAIL_OF_SEVERAL if self.tail is None and sources > 1 else self.tail


@dataclass(frozen=True, slots=True)
class LogLine:
    """`prefix` says whose it is where there are several, else it is empty."""

    text: str
    prefix: str = ""

    def __str__(self) -> str:
        return f"{self.prefix}{self.text}"


def prefix_for(rank: int, sources: int) -> str:
    """What stands before the lines of a rank."""
    return f"[rank{rank}] " if sources > 1 else ""


def unknown_rank(rank: int, ranks: Sequence[int]) -> InvalidInput:
    """No worker of that rank."""
    known = ", ".join(map(str, sorted(set(ranks)))) or "none"
    return InvalidInput(Problem("--rank", rank, f"there are logs of ranks {known}"))


def unknown_node(node: str, nodes: Iterable[str]) -> InvalidInput:
    """No worker on that node."""
    return InvalidInput(
        Problem("--node", node, f"there are logs of nodes {', '.join(sorted(set(nodes))) or 'none'}")
    )


def no_previous(request: LogRequest) -> Unavailable:
    """Nothing was started again, or it is no longer kept."""
    who = "any rank" if request.rank is None else f"rank {request.rank}"
    return Unavailable(f"no worker process before the newest one is known of {who}")
