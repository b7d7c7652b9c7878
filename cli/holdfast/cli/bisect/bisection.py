"""From two runs to the first thing in which they differ, by training both again from where they were the same.

What is concluded rests on three comparisons: A trained again with B trained again (what their settings and code
make of the same state), each with its own record (whether this machine repeats what that one did), and, where the
two were started alike and still differ, A with A trained once more (whether the training is deterministic at all).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from holdfast.api.rehearsal import Kind, Rehearsal
from holdfast.api.runhistory import StoredHistory
from holdfast.cli.bisect.difference import (
    Difference,
    Stage,
    are_drawn_from,
    earliest,
    first_difference,
    with_operation,
)
from holdfast.cli.bisect.program import Program
from holdfast.cli.bisect.rehearsals import Traces

_SHOWN: Final = 5

Rehearse = Callable[[Sequence[tuple[Program, Rehearsal, Path]]], list[Traces]]


class Cause(StrEnum):
    """What made the two differ, as far as it can be told."""

    STARTED = "started otherwise"  # code or settings: trained again, they differ
    RECORD = "not repeated"  # trained again they are alike, and one of them recorded something else
    CHANCE = "not deterministic"  # trained twice from the same state, A differs from itself
    UNREACHED = "not reached"  # what was recorded differs at a step that was not trained again
    NONE = "no difference"


@dataclass(frozen=True, slots=True)
class Departure:
    """Where run `name` trained again gives something else than it recorded: the first step, and in what."""

    name: str
    step: int
    what: str


@dataclass(frozen=True, slots=True)
class Bisected:
    """`began` is the step both began from (0: afresh), `last` the last one that was trained again."""

    cause: Cause
    began: int
    last: int
    difference: Difference | None
    departures: tuple[Departure, ...]
    says: str

    @property
    def step(self) -> int | None:
        """The first step that differs; None: none does."""
        if self.difference is not None:
            return self.difference.step
        return min((each.step for each in self.departures), default=None)


@dataclass(frozen=True, slots=True)
class Question:
    """The two programs, where what they begin from was copied to, and which steps are asked about. `recorded` is
    the first step of which the two recorded something else, or saved something else; None: there is none.
    """

    a: Program
    b: Program
    uri: str
    began: int
    last: int
    scratch: Path
    recorded: int | None = None


def bisect(question: Question, histories: tuple[StoredHistory, StoredHistory], rehearse: Rehearse) -> Bisected:
    """Raises Failed as `rehearse` does."""
    wanted = Rehearsal(uri=question.uri, output="", last=question.last)
    traces = rehearse([(question.a, wanted, question.scratch / "A"), (question.b, wanted, question.scratch / "B")])
    found = _between(*traces)
    departures = tuple(
        each
        for name, trace, history in zip("AB", traces, histories, strict=True)
        if (each := departure(name, trace, history)) is not None
    )
    if found is None:
        reached = max((step for each in traces for step, _ in each.told(Kind.PARAMETER)), default=question.began)
        return _alike(replace(question, last=reached), departures)
    chance = _chance(question, wanted, traces, histories, rehearse)
    if chance is not None:
        name, own = chance
        says = f"{name} trained twice from the same state differs from itself: look for what is not deterministic"
        return Bisected(Cause.CHANCE, question.began, question.last, own, departures, says)
    if found.look is not None:
        looking = Rehearsal(uri=question.uri, output="", last=found.step, look=found.look)
        closer = rehearse(
            [
                (question.a, looking, question.scratch / "A-look"),
                (question.b, looking, question.scratch / "B-look"),
            ]
        )
        found = with_operation(found, closer[0].of(found.rank), closer[1].of(found.rank))
    says = "trained again from the same state they differ" if found.stage is not Stage.STATE else found.says
    return Bisected(Cause.STARTED, question.began, question.last, found, departures, says)


def _chance(
    question: Question,
    wanted: Rehearsal,
    traces: Sequence[Traces],
    histories: Sequence[StoredHistory],
    rehearse: Rehearse,
) -> tuple[str, Difference] | None:
    """Which of the two differs from itself, and where; None: neither. Who repeats its own record is not asked."""
    for program, trace, history in zip((question.a, question.b), traces, histories, strict=True):
        told = {step for step, _ in trace.told(Kind.LOSS)}
        if told.intersection(history.losses) and departure(program.name, trace, history) is None:
            continue
        (again,) = rehearse([(program, wanted, question.scratch / f"{program.name}-again")])
        own = _between(trace, again)
        if own is not None:
            return program.name, own
    return None


def _between(a: Traces, b: Traces) -> Difference | None:
    ranks = min(a.ranks, b.ranks)
    return earliest(
        first_difference(
            a.of(rank), b.of(rank), rank, drawn=are_drawn_from(a.of(rank)) or are_drawn_from(b.of(rank))
        )
        for rank in range(ranks)
    )


def _alike(question: Question, departures: tuple[Departure, ...]) -> Bisected:
    recorded, last = question.recorded, question.last
    cause = Cause.RECORD if departures or (recorded is not None and recorded <= last) else Cause.NONE
    others = [each for each in (question.a, question.b) if each.others]
    if cause is Cause.NONE and recorded is not None:
        cause = Cause.UNREACHED
        says = f"alike up to step {last}; as recorded they differ at step {recorded}: say --steps with more"
    elif cause is Cause.NONE:
        says = f"trained again both give the same, up to step {last}, and so they recorded it"
    elif others:
        says = "trained again both give the same, but not with the code that was recorded: " + "; ".join(
            f"{', '.join(each.others[:_SHOWN])} of {each.name} is another in {each.directory}" for each in others
        )
    elif len(departures) == 1:
        (only,) = departures
        other = "B" if only.name == "A" else "A"
        says = (
            f"trained again both give the same, as {other} recorded it; what {only.name} recorded is not what its "
            "settings and its code give: a device or memory was wrong then, or something that is in no manifest"
        )
    elif departures:
        says = "trained again both give the same, and neither what it recorded: this machine does not repeat them"
    else:
        says = f"trained again both give the same, and what they recorded or saved differs at step {recorded}"
    return Bisected(cause, question.began, last, None, departures, says)


def departure(name: str, trace: Traces, history: StoredHistory) -> Departure | None:
    """The first step at which what was trained again is not what was recorded; None where nothing tells."""
    losses, prints = history.losses, history.fingerprints
    found: dict[int, list[str]] = {}
    for (step, _), value in trace.told(Kind.LOSS).items():
        if step in losses and losses[step].hex() != value:
            found.setdefault(step, []).append("the loss")
    for (step, group), value in trace.told(Kind.GROUP).items():
        recorded = prints.get(step, {}).get(group)
        if recorded is not None and f"{recorded:016x}" != value:
            found.setdefault(step, []).append(f"the parameters of {group}")
    if not found:
        return None
    step = min(found)
    shown, more = found[step][:_SHOWN], len(found[step]) - _SHOWN
    return Departure(name, step, ", ".join(shown) + (f" and {more} more" if more > 0 else ""))
