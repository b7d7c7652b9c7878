"""Who did not arrive: reads one round's ranks at a standstill and names those the others wait for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from holdfast.api.finding import Confidence, Evidence
from holdfast.api.rankrecord import Phase
from holdfast.api.telemetry import ProcessState, RankSample
from holdfast.watchdog.wording import ranks_in_words

# Where a rank still has to do its own work before it can meet the others, in order. A rank in the backward pass
# or later may be waiting for them.
_BEFORE_THE_MEETING = (
    Phase.STARTUP,
    Phase.IDLE,
    Phase.CHECKPOINT,
    Phase.DATA,
    Phase.FORWARD,
)
_PLACES = {phase: place for place, phase in enumerate((*_BEFORE_THE_MEETING, Phase.BACKWARD, Phase.OPTIMIZER))}
GROUPS_SHOWN = 8
CULPRITS_SHOWN = 8


class Seen(msgspec.Struct, frozen=True, gc=False):
    """One rank's newest sample. `at` is its arrival, `progress_at` when the rank last moved, `stopped_at` since
    when its process has been seen stopped, None when it is not (watchdog clock).
    """

    sample: RankSample
    at: float
    progress_at: float
    stopped_at: float | None = None

    @property
    def stalled_s(self) -> float:
        """How long the rank is proven not to have moved."""
        return self.at - self.progress_at


@dataclass(frozen=True, slots=True)
class Named:
    """The ranks that did not arrive, none when nobody stands out, and by which rule."""

    ranks: tuple[int, ...]
    confidence: Confidence
    cause: str


def name_the_missing(seen: Mapping[int, Seen], absent: Sequence[int]) -> Named:
    """The first rule that tells one side from the other.

    `absent` are ranks that never published anything in this round, on nodes whose agents do report.
    """
    if absent:
        return Named(tuple(absent), Confidence.PROBABLE, "never entered the round")
    gone = tuple(rank for rank, each in seen.items() if each.sample.process is ProcessState.GONE)
    if gone:
        return Named(gone, Confidence.CERTAIN, "the process is gone")
    behind = _lowest({rank: _steps_done(each.sample) for rank, each in seen.items()})
    sequences = {rank: each.sample.collective_sequence for rank, each in seen.items()}
    known = {rank: sequence for rank, sequence in sequences.items() if sequence is not None}
    if not behind and len(known) == len(seen):
        behind = _lowest(known)
    if behind:
        return Named(behind, Confidence.PROBABLE, "did not reach the collective")
    early = _lowest({rank: _PLACES[each.sample.phase] for rank, each in seen.items()})
    if early and seen[early[0]].sample.phase in _BEFORE_THE_MEETING:
        phase = seen[early[0]].sample.phase
        return Named(early, Confidence.PROBABLE, f"stuck in {phase.name.lower()}")
    return Named((), Confidence.UNKNOWN, "every rank waits")


def _steps_done(sample: RankSample) -> int:
    return -1 if sample.step is None else sample.step


def _lowest(places: Mapping[int, int]) -> tuple[int, ...]:
    """The ranks at the lowest place; none when all are level."""
    lowest = min(places.values())
    ranks = tuple(rank for rank, place in places.items() if place == lowest)
    return () if len(ranks) == len(places) else ranks


def evidence_of(seen: Mapping[int, Seen], missing: Sequence[int], now: float) -> tuple[Evidence, ...]:
    """Both sides: who did not arrive, and who waits where. Ranks in the same state share a line."""
    lines = [_missing(rank, seen.get(rank), now) for rank in missing[:CULPRITS_SHOWN]]
    named = set(missing)
    groups: dict[tuple[int | None, int | None, Phase], list[int]] = {}
    for rank, each in seen.items():
        if rank not in named:
            key = (each.sample.step, each.sample.collective_sequence, each.sample.phase)
            groups.setdefault(key, []).append(rank)
    largest_first = sorted(groups.items(), key=lambda group: -len(group[1]))
    for _, ranks in largest_first[:GROUPS_SHOWN]:
        one = seen[ranks[0]]
        longest = max(seen[rank].stalled_s for rank in ranks)
        says = f"{ranks_in_words(ranks)} {_where(one.sample)}, waiting for {longest:.1f} s"
        lines.append(Evidence("rank records", says, one.at))
    return tuple(lines)


def _missing(rank: int, seen: Seen | None, now: float) -> Evidence:
    if seen is None:
        return Evidence("rank records", f"rank {rank} did not arrive: it never published in this round", now)
    sample = seen.sample
    pulse = "unknown" if sample.pulse_age_s is None else f"{sample.pulse_age_s:.1f} s ago"
    says = (
        f"rank {rank} did not arrive: process {sample.process.value}, {_where(sample)}, "
        f"no progress for {seen.stalled_s:.1f} s, last pulse {pulse}"
    )
    return Evidence("rank records", says, seen.at)


def _where(sample: RankSample) -> str:
    step = "before its first step" if sample.step is None else f"after step {sample.step}"
    collective = "" if sample.collective_sequence is None else f", collective {sample.collective_sequence}"
    return f"in {sample.phase.name.lower()} {step}{collective}"
