"""The names an object store holds.

step-00000012.7-<token>_<attempt>/...     a save of step 12 by round 7; whether it is a checkpoint says the journal
journal/000000000042.json                 the journal's entry 42
"""

import re

from holdfast.checkpoint.naming import committed_name

JOURNAL = "journal"
_SAVE = re.compile(r"step-\d{8,}\.(\d+)-(\w+)_\d+")
_ENTRY = re.compile(r"(\d{12})\.json")


def save_name(step: int, *, round: int, token: str, attempt: int) -> str:
    return f"{committed_name(step)}.{round}-{token}_{attempt}"


def saved_by(name: str) -> tuple[int, str] | None:
    """The round and the token of whose save it is, None for any other name."""
    match = _SAVE.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


def entry_name(number: int) -> str:
    return f"{number:012d}.json"


def entry_number(name: str) -> int | None:
    """Which of the journal's entries has this name, None for any other name."""
    match = _ENTRY.fullmatch(name)
    return int(match[1]) if match else None
