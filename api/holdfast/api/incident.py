"""One fault's life, from detection to recovery: culprit, cause, evidence, actions, timeline, cost."""

from collections.abc import Sequence
from enum import IntEnum, StrEnum
from typing import Final

import msgspec

from holdfast.api.finding import Confidence, Evidence, FindingKind, Subject

CAUSE_WITHIN_S: Final = 900.0
"""How soon after its detection the cause of an incident is to be known. Our own target: the slow end of the 2
to 15 minutes that were published for failures that say what they are; a hang took people more than an hour and a
half.
Source: https://arxiv.org/abs/2509.16293 (ByteRobust)
"""
ALSO_KEPT: Final = 16
SHOWN: Final = 3
"""So many of those who are named alike stand in a line; the evidence names them all."""


class Rung(IntEnum):
    """The recovery ladder. The brain takes the lowest rung that the evidence allows, and climbs on repetition."""

    SKIP_STEP = 0
    REENTER = 1
    RESPAWN = 2
    SWAP = 3
    SHRINK = 4
    REWIND = 5
    PAGE = 6


class IncidentState(StrEnum):
    OPEN = "Open"
    RECOVERED = "Recovered"
    PAGED = "Paged"
    OBSERVED = "Observed"  # what would be done is told, and nothing was: the job is only observed


class Action(msgspec.Struct, frozen=True):
    """What was done at one rung, when, and why."""

    rung: Rung
    at: float
    does: str
    reason: str
    round: int | None = None


class Moment(msgspec.Struct, frozen=True):
    """One line of an incident's timeline."""

    at: float
    what: str


class Slowed(msgspec.Struct, frozen=True):
    """What slow ranks cost so far: in `steps` steps all ranks waited for them, `excess_s` seconds in each. That is
    `rank_s` seconds of one rank. While it lasts it is told anew each time it has doubled.
    """

    excess_s: float
    steps: int
    rank_s: float

    @property
    def rank_hours(self) -> float:
        """GPU-hours, where each rank has a GPU."""
        return self.rank_s / 3600.0


class Incident(msgspec.Struct, frozen=True, omit_defaults=True):
    """One fault. Times are seconds on the watchdog's clock.

    `began_at` is an estimate from the evidence, `detected_at` when the finding was made, `recovered_at` when every
    rank of the new round had completed a new step; of a script that publishes no steps it stays empty.
    `lost_steps` counts steps that were completed before the fault and had to be trained again. `innocent` says
    that the culprit's node had no part in it: somebody, or its own limit, ended the pod, or it is the script that
    works on or stands. `own_rule` says that only the job's own spec makes a fault of it. `slowed` is what a
    STRAGGLER costs, also when the incident is over.
    `also` are others whom the evidence names as it does the culprit, `ALSO_KEPT` at most: replicas of which nobody
    is in the majority, ranks that share a batch.
    `known_at` is when the kind and the culprit first stood as they stand now, both at least probable; None while
    they are not, and of an incident of before this was recorded.
    """

    id: str
    job: str
    kind: FindingKind
    culprit: Subject
    confidence: Confidence
    cause: str
    state: IncidentState
    began_at: float
    detected_at: float
    evidence: tuple[Evidence, ...]
    actions: tuple[Action, ...] = ()
    timeline: tuple[Moment, ...] = ()
    round: int | None = None  # the round it broke
    recovered_round: int | None = None  # the round meant to heal it
    recovered_at: float | None = None
    lost_steps: int | None = None
    error: str = ""
    note: str = ""  # what was changed about the first judgement later (exoneration, joined evidence)
    innocent: bool = False
    own_rule: bool = False
    slowed: Slowed | None = None
    known_at: float | None = None
    also: tuple[Subject, ...] = ()

    @property
    def named(self) -> tuple[Subject, ...]:
        """Everybody whom the evidence names alike."""
        return (self.culprit, *self.also)

    def in_words(self, named: Sequence[Subject]) -> str:
        """Some of those named: "a or b" where nobody knows which of them it was, else "a and b"."""
        joint = "or" if self.confidence is Confidence.UNKNOWN else "and"
        *before, last = [*map(str, named[:SHOWN]), *(["others"] if len(named) > SHOWN else [])]
        return f"{', '.join(before)} {joint} {last}" if before else last

    @property
    def blamed(self) -> str:
        """Who it was, in words; of a pod that was ended by somebody, that pod and no node."""
        if self.is_scripts:
            return f"the script, rank {self.culprit.rank}"
        return f"pod {self.culprit.member}" if self.innocent else self.in_words(self.named)

    @property
    def is_scripts(self) -> bool:
        """Whether it is a hang of what the script does itself."""
        return self.innocent and self.kind is FindingKind.HANG

    @property
    def time_to_detect_s(self) -> float:
        return max(0.0, self.detected_at - self.began_at)

    @property
    def has_known_cause(self) -> bool:
        """Whether kind and culprit are at least probable. A collective that failed is a symptom, and no cause."""
        return self.confidence is not Confidence.UNKNOWN and self.kind is not FindingKind.COLLECTIVE_FAILED

    @property
    def time_to_cause_s(self) -> float | None:
        """From the finding to the known cause; None where that is not known, or when it was is not."""
        return None if self.known_at is None else max(0.0, self.known_at - self.detected_at)

    @property
    def time_to_recover_s(self) -> float | None:
        """From the fault to the first new step; None while not recovered."""
        return None if self.recovered_at is None else max(0.0, self.recovered_at - self.began_at)

    @property
    def rung(self) -> Rung | None:
        """The highest rung climbed so far."""
        return max((action.rung for action in self.actions), default=None)
