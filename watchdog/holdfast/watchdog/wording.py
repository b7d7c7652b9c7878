"""Lists of names as a human reads them: a thousand names in one sentence help nobody."""

from collections.abc import Iterable
from heapq import nsmallest

NAMED = 16


def in_words(names: Iterable[str]) -> str:
    """The names in order: "a, b, c"; beyond `NAMED` of them the rest is counted."""
    known = tuple(names)
    told = ", ".join(nsmallest(NAMED, known))  # of thousands, whom sorting would take milliseconds
    return told if len(known) <= NAMED else f"{told} and {len(known) - NAMED} more"


def ranks_in_words(ranks: Iterable[int]) -> str:
    """Ranks in order, neighbours together: "ranks 0-3, 7"; beyond `NAMED` such runs the rest is counted."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    told = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs[:NAMED])
    if len(runs) > NAMED:
        told += f" and {sum(last - first + 1 for first, last in runs[NAMED:])} more"
    return f"rank {told}" if len(runs) == 1 and runs[0][0] == runs[0][1] else f"ranks {told}"
