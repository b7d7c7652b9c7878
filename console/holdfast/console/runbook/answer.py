"""What a check comes to: a verdict with its evidence, and the command to run next."""

from collections.abc import Mapping
from enum import IntEnum, StrEnum

import msgspec


class Verdict(StrEnum):
    """UNKNOWN is a state of its own: what could not be looked at is never fine."""

    FINE = "fine"
    SUSPECT = "suspect"
    UNKNOWN = "unknown"


class Weight(IntEnum):
    """What a suspicion rests on."""

    HINTED = 1  # something happened that may have to do with it
    NAMED = 2  # a detector or a sensor says so, now or lately
    PROVED = 3  # what the check names is certain; that the symptom comes of it is a person's to judge


class Said(msgspec.Struct, frozen=True):
    """What a check's function says. `about` fills in the command that follows: node, rank, incident, step.
    `healed`: it rests on a fault after which the job went on for a while.
    """

    verdict: Verdict
    evidence: str
    weight: Weight = Weight.HINTED
    about: Mapping[str, str] = {}
    healed: bool = False

    @property
    def is_of_now(self) -> bool:
        """Whether it is a suspicion that nothing seen now need be asked about."""
        return self.verdict is Verdict.SUSPECT and self.weight > Weight.HINTED and not self.healed


class Answer(msgspec.Struct, frozen=True):
    """One check of one symptom. `next` are the words of a command, without program and job. `likely` is of a
    hundred such calls about how many it is.
    """

    id: str
    title: str
    verdict: Verdict
    proved: bool
    evidence: str
    next: str
    likely: int
    weight: Weight = Weight.HINTED

    def shown(self, command: str) -> dict[str, object]:
        """As programs are answered; `command` is `next` as a whole line."""
        return {
            "id": self.id,
            "title": self.title,
            "verdict": self.verdict.value,
            "proved": self.proved,
            "evidence": self.evidence,
            "next": command,
        }


def fine(evidence: str) -> Said:
    return Said(Verdict.FINE, evidence)


def unknown(why: str) -> Said:
    return Said(Verdict.UNKNOWN, why)


def hint(evidence: str, **about: object) -> Said:
    """Something that may have to do with it."""
    return _suspect(evidence, Weight.HINTED, about)


def named(evidence: str, **about: object) -> Said:
    """A detector or a sensor says so."""
    return _suspect(evidence, Weight.NAMED, about)


def proved(evidence: str, **about: object) -> Said:
    """It is certain."""
    return _suspect(evidence, Weight.PROVED, about)


def _suspect(evidence: str, weight: Weight, about: Mapping[str, object]) -> Said:
    filled = {name: str(value) for name, value in about.items() if value is not None}
    return Said(Verdict.SUSPECT, evidence, weight, filled)
