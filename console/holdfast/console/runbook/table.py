"""All checks, as one table."""

from typing import Final

from holdfast.console.runbook import (
    beginning,
    changes,
    hardware,
    losses,
    memory,
    saving,
    slowing,
    spending,
    standstill,
)
from holdfast.console.runbook.check import Check
from holdfast.console.runbook.symptom import Symptom

_PARTS: Final = (losses, changes, standstill, beginning, slowing, hardware, memory, saving, spending)
CHECKS: Final[tuple[Check, ...]] = tuple(check for part in _PARTS for check in part.CHECKS)


def checks_of(symptom: Symptom) -> tuple[Check, ...]:
    """Those of a symptom, the likeliest first."""
    asked = (check for check in CHECKS if symptom in check.likely)
    return tuple(sorted(asked, key=lambda check: -check.likely[symptom]))
