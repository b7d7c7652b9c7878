"""How long a test waits for what must come, on whatever machine it runs.

A limit is there to end a test that would wait for ever, so it may be generous: it costs time only where something
is broken. Each is written as what a quiet machine needs at the very most, and is stretched here, in one place, so
that it holds on a machine four times slower; HOLDFAST_TEST_PATIENCE says another factor. What a test gives to
Holdfast (leases, beats, timeouts of peers) is stretched where a slow machine could miss it and its length is not
what the test is about.
"""

import os
from collections.abc import Iterable

import pytest

STRETCH = float(os.environ.get("HOLDFAST_TEST_PATIENCE", "4"))


def patient(seconds: float) -> float:
    """So many seconds of a quiet machine, on this one."""
    return seconds * STRETCH


def stretch_limits(items: Iterable[pytest.Item]) -> None:
    """The limits that tests carry in a mark are those of a quiet machine too."""
    for item in items:
        mark = item.get_closest_marker("timeout")
        if mark is not None and mark.args:
            item.add_marker(pytest.mark.timeout(patient(mark.args[0])), append=False)
