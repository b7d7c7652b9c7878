"""Lists of names as a human reads them: a thousand names in one sentence help nobody."""

from collections.abc import Iterable

NAMED = 16


def in_words(names: Iterable[str]) -> str:
    """The names in order: "a, b, c"; beyond `NAMED` of them the rest is counted."""
    known = sorted(names)
    told = ", ".join(known[:NAMED])
    return told if len(known) <= NAMED else f"{told} and {len(known) - NAMED} more"
