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


def findings_text(findings: Sequence[Finding]) -> str:
    """One line per finding, what to do about it below it."""
    width = max((len(each.what) for each in findings), default=0)
    lines = []
    for each in findings:
        lines.append(f"{each.level.value:<4}  {each.what.ljust(width)}  {each.says}".rstrip())
        if each.fix and each.level is not Level.OK:
            lines.append(f"      {' ' * width}  -> {each.fix}")
    return "\n".join(lines)
