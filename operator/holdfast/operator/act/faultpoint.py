"""Named places where a test makes the operator die, as hard as a machine that loses power.

`HOLDFAST_OPERATOR_FAULT=NAME:COUNT` ends the process the COUNT-th time it reaches NAME. Unset, `reach` is one
comparison.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from holdfast.api.errors import InvalidInput, Problem

EXIT_CODE: Final = 86
VARIABLE: Final = "HOLDFAST_OPERATOR_FAULT"


# What the operator changes. It can die before and after each: `before-NAME`, `after-NAME`.
CHANGES: Final = (
    *("finalizer", "submit", "pod-created", "apply", "cordon", "uncordon", "pod-deleted", "owned-deleted"),
    *(
        "node-health",
        "remediation",
        "status",
        "event",
        "forget",
        "last-event",
        "release",
        "job-deleted",
        "intervention",
        "workload",
        "check",
    ),
)
POINTS: Final = tuple(f"{when}-{change}" for change in CHANGES for when in ("before", "after"))

_armed: str | None = None
_left = 0


def arm(text: str) -> None:
    """Take what the variable says; empty arms nothing. Raises InvalidInput."""
    global _armed, _left
    if not text:
        return
    name, _, count = text.partition(":")
    if name not in POINTS or not (count or "1").isdecimal() or int(count or "1") < 1:
        raise InvalidInput(Problem(VARIABLE, text, f"give NAME:COUNT, NAME one of {', '.join(POINTS)}"))
    _armed, _left = name, int(count or "1")


def reach(point: str) -> None:
    """Die here when a test asked for it."""
    global _left
    if point != _armed:
        return
    _left -= 1
    if _left == 0:
        os._exit(EXIT_CODE)


@contextmanager
def around(change: str) -> Iterator[None]:
    """The points before and, when nothing was raised, after one of `CHANGES`."""
    if _armed is None:
        yield
        return
    reach(f"before-{change}")
    yield
    reach(f"after-{change}")
