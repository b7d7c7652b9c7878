"""What a check says."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How it stands."""

    OK = "ok"
    WARN = "warn"  # it works; somebody should look. Also: it could not be seen
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's: what was looked at, how it is, what to do about it."""

    level: Level
    what: str
    says: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Unseen:
    """A fact that could not be gathered, and why. It is Unknown: neither well nor ill."""

    reason: str


def unseen(what: str, fact: Unseen) -> Finding:
    """How a fact that could not be gathered is told."""
    return Finding(Level.WARN, what, f"not known: {fact.reason}", "ask somebody who may see it")


def worst(findings: Sequence[Finding]) -> Level:
    """The worst level of all."""
    for level in (Level.FAIL, Level.WARN):
        if any(finding.level is level for finding in findings):
            return level
    return Level.OK
