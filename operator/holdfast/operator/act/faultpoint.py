"""Named places where a test makes the operator die, as hard as a machine that loses power.

`HOLDFAST_OPERATOR_FAULT=NAME:COUNT` ends the process the COUNT-th time it reaches NAME. Unset, `reach` is one
comparison.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Final

from holdfast.api.errors import InvalidInput, Problem

EXIT_CODE: Final = 86
VARIABLE: Final = "HOLDFAST_OPERATOR_FAULT"


class Point(StrEnum):
    """Before and after everything the operator changes."""

    BEFORE_FINALIZER = "before-finalizer"
    AFTER_FINALIZER = "after-finalizer"
    BEFORE_SUBMIT = "before-submit"
    AFTER_SUBMIT = "after-submit"
    BEFORE_POD_CREATED = "before-pod-created"
    AFTER_POD_CREATED = "after-pod-created"
    BEFORE_APPLY = "before-apply"
    AFTER_APPLY = "after-apply"
    BEFORE_CORDON = "before-cordon"
    AFTER_CORDON = "after-cordon"
    BEFORE_UNCORDON = "before-uncordon"
    AFTER_UNCORDON = "after-uncordon"
    BEFORE_POD_DELETED = "before-pod-deleted"
    AFTER_POD_DELETED = "after-pod-deleted"
    BEFORE_OWNED_DELETED = "before-owned-deleted"
    AFTER_OWNED_DELETED = "after-owned-deleted"
    BEFORE_STATUS = "before-status"
    AFTER_STATUS = "after-status"
    BEFORE_EVENT = "before-event"
    AFTER_EVENT = "after-event"
    BEFORE_FORGET = "before-forget"
    AFTER_FORGET = "after-forget"
    BEFORE_RELEASE = "before-release"
    AFTER_RELEASE = "after-release"
    BEFORE_JOB_DELETED = "before-job-deleted"
    AFTER_JOB_DELETED = "after-job-deleted"
    BEFORE_INTERVENTION = "before-intervention"
    AFTER_INTERVENTION = "after-intervention"


_armed: Point | None = None
_left = 0


def arm(text: str) -> None:
    """Take what the variable says; empty arms nothing. Raises InvalidInput."""
    global _armed, _left
    if not text:
        return
    name, _, count = text.partition(":")
    if name not in tuple(Point) or not (count or "1").isdecimal() or int(count or "1") < 1:
        raise InvalidInput(Problem(VARIABLE, text, f"give NAME:COUNT, NAME one of {', '.join(Point)}"))
    _armed, _left = Point(name), int(count or "1")


def reach(point: Point) -> None:
    """Die here when a test asked for it."""
    global _left
    if point is not _armed:
        return
    _left -= 1
    if _left == 0:
        os._exit(EXIT_CODE)


@contextmanager
def around(name: str) -> Iterator[None]:
    """The points `before-NAME` and, when nothing was raised, `after-NAME`."""
    if _armed is None:
        yield
        return
    reach(Point(f"before-{name}"))
    yield
    reach(Point(f"after-{name}"))
