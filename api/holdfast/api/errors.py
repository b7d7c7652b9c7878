"""The error tree every part of Holdfast grows from.

HoldfastError
|-- InvalidInput           a user's file, flag or message is wrong; names field, value and fix
|   `-- InvalidSpec        a TrainingJob or Intervention, with every problem found
|-- Unavailable            something needed is not there now; trying again may help
|-- Fenced                 a newer round or leader exists; trying again never helps
|-- Damaged                stored bytes are not what was written
`-- Malformed              bytes from elsewhere are no message of the kind that is expected
"""

from dataclasses import dataclass
from typing import Final

# A condition's message is cut at some length, and an event's at 1024 bytes: the fix is what must be in it.
SHOWN_MAX: Final = 160


class HoldfastError(Exception):
    """Base of every error Holdfast raises on purpose. Its text is one clear sentence."""


@dataclass(frozen=True)
class Problem:
    """One thing wrong with an input: where, what was given, what to do."""

    field: str
    value: object
    fix: str

    def __str__(self) -> str:
        return f"{self.field}: {_shown(self.value)} is not accepted; {self.fix}"


def _shown(value: object) -> str:
    """The value as it was given, or its beginning and how long it is."""
    given = repr(value)
    if len(given) <= SHOWN_MAX:
        return given
    return f"{given[: SHOWN_MAX // 2]}... ({len(given)} characters)"


class InvalidInput(HoldfastError):
    """Input was refused whole. `problems` names each field, the value given and the fix."""

    def __init__(self, *problems: Problem) -> None:
        self.problems = problems
        super().__init__("; ".join(str(problem) for problem in problems))


class InvalidSpec(InvalidInput):
    """A TrainingJob or Intervention was refused."""


class Unavailable(HoldfastError):
    """A needed part is away for now."""


class Fenced(HoldfastError):
    """The caller's round or leadership is over."""


class Damaged(HoldfastError):
    """Stored data failed verification."""


class Malformed(HoldfastError):
    """Bytes that somebody else sent or wrote are not what is expected there."""
