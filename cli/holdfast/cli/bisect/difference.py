"""The first thing in which two traces of the same steps differ, and what in the model that means. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import zip_longest
from typing import Final

from holdfast.api.rehearsal import UNREADABLE, Kind, Look, Seen

NAMES_MAX: Final = 8


class Stage(StrEnum):
    """In which part of a step the two part."""

    STATE = "state"  # before the first of the steps
    DATA = "data"
    RANDOM = "random numbers"
    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    GRADIENT = "gradient"  # as the optimizer is given it: computed, reduced and clipped
    UPDATE = "optimizer"
    REPORT = "report"  # what the script says of the step
    ENDED = "ended"  # the one goes on, the other does not


@dataclass(frozen=True, slots=True)
class Difference:
    """Between A and B in `step` on `rank`. `module` is its qualified name ("": the whole model, None: unknown or
    of no module). `names` are the parameters it shows in, `NAMES_MAX` at the most, of `count` in all. `operation`
    is named where it is known. `says` is one sentence.
    """

    step: int
    rank: int
    stage: Stage
    says: str
    module: str | None = None
    call: int = 0
    names: tuple[str, ...] = ()
    count: int = 0
    operation: str | None = None

    @property
    def look(self) -> Look | None:
        """Where a closer look could name the operation; None: nowhere."""
        if self.stage is not Stage.FORWARD or self.module is None:
            return None
        return Look(self.step, self.module, self.call)


def are_drawn_from(seen: Iterable[Seen]) -> bool:
    """Whether the generators of random numbers change within the steps."""
    return len({each.gave for each in seen if each.kind is Kind.RANDOM}) > 1


def first_difference(
    a: Iterable[Seen], b: Iterable[Seen], rank: int = 0, *, drawn: bool = True
) -> Difference | None:
    """None where both saw the same. What one of them could not read is passed over, and so are the generators of
    random numbers where neither draws from them (`drawn`).
    """
    stack: list[tuple[str, int]] = []  # the calls that are under way
    before: str | None = None  # the module that returned last
    pairs = zip_longest(_main(a), _main(b))
    for ours, theirs in pairs:
        if ours is None or theirs is None:
            there = ours or theirs
            assert there is not None
            which = "A" if theirs is None else "B"
            return Difference(there.step, rank, Stage.ENDED, f"{which} alone goes on from here")
        is_idle = not drawn and ours.kind is theirs.kind is Kind.RANDOM
        if is_idle or not _differ(ours, theirs):
            if ours.kind is Kind.ENTER:
                stack.append((ours.name, ours.call))
            elif ours.kind is Kind.LEAVE:
                before = ours.name
                if stack:
                    stack.pop()
            continue
        return _explained(ours, theirs, pairs, Place(rank, stack[-1] if stack else None, before))
    return None


def _main(seen: Iterable[Seen]) -> Iterator[Seen]:
    """What both have at the same places: neither the operations nor the groups, which are for other questions."""
    return (each for each in seen if each.kind not in (Kind.OPERATION, Kind.GROUP))


def _is_same(ours: str, theirs: str) -> bool:
    return ours == theirs or UNREADABLE in (ours, theirs)


def _differ(ours: Seen, theirs: Seen) -> bool:
    if (ours.step, ours.kind, ours.name, ours.call) != (theirs.step, theirs.kind, theirs.name, theirs.call):
        return True
    return not (_is_same(ours.took, theirs.took) and _is_same(ours.gave, theirs.gave))


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the model: the call under way, and the module that returned last."""

    rank: int
    within: tuple[str, int] | None
    before: str | None


def _explained(
    ours: Seen, theirs: Seen, rest: Iterator[tuple[Seen | None, Seen | None]], place: Place
) -> Difference:
    """What the first pair that differs means."""
    step, rank, name = ours.step, place.rank, ours.name
    within, call = place.within or (None, 0)
    if (ours.kind, ours.name, ours.call) != (theirs.kind, theirs.name, theirs.call):
        says = f"A {_deed(ours)} where B {_deed(theirs)}"
        stage = Stage.FORWARD if within is not None else Stage.BACKWARD
        return Difference(step, rank, stage, says, within, call)
    if ours.kind in (Kind.STATE, Kind.GRADIENT, Kind.PARAMETER):
        return _of_parameters(ours, [name, *_further(ours, rest)], rank)
    match ours.kind:
        case Kind.RANDOM:
            return Difference(
                step, rank, Stage.RANDOM, "the generators of random numbers are not in the same state"
            )
        case Kind.ENTER if within is None:
            return Difference(step, rank, Stage.DATA, "the model is given another batch")
        case Kind.ENTER:
            since = f"after {_module(place.before)} and before" if place.before else "before"
            says = f"computed in {_module(within)} itself, {since} {_module(name)} is called"
            return Difference(step, rank, Stage.FORWARD, says, within, call)
        case Kind.LEAVE:
            says = f"{_module(name)} takes the same and gives something else"
            return Difference(step, rank, Stage.FORWARD, says, name, ours.call)
        case Kind.OUTPUT_GRADIENT if name == "":
            says = "the model gives the same, and the gradient of that differs: it is in the loss"
            return Difference(step, rank, Stage.LOSS, says)
        case Kind.OUTPUT_GRADIENT:
            says = f"the gradient of what {_module(name)} gave: in the backward pass of what comes after it"
            return Difference(step, rank, Stage.BACKWARD, says, name, ours.call)
    what = "loss" if ours.kind is Kind.LOSS else "gradient norm"
    says = f"gradients and parameters are the same, and the {what} that the script tells is not"
    return Difference(step, rank, Stage.REPORT, says)


def _further(ours: Seen, rest: Iterator[tuple[Seen | None, Seen | None]]) -> list[str]:
    """The names that follow directly, are of the same kind, and differ as well."""
    found = []
    for mine, other in rest:
        if mine is None or other is None or mine.kind is not ours.kind or mine.name != other.name:
            break
        if _differ(mine, other):
            found.append(mine.name)
    return found


def _of_parameters(seen: Seen, names: list[str], rank: int) -> Difference:
    shown, count = tuple(names[:NAMES_MAX]), len(names)
    # Of one parameter the module is known; of many there is none to blame.
    module = seen.name.rpartition(".")[0] if count == 1 else None
    stage, says = {
        Kind.STATE: (Stage.STATE, "they do not begin with the same parameters"),
        Kind.GRADIENT: (
            Stage.GRADIENT,
            "what modules gave and the gradients of that are the same, and gradients of parameters differ: "
            "in a module's backward pass, in the reduction over the ranks, or in the clipping",
        ),
        Kind.PARAMETER: (
            Stage.UPDATE,
            "the gradients are the same, and the parameters after the update differ: in the optimizer or its "
            "settings, or in memory",
        ),
    }[seen.kind]
    return Difference(seen.step, rank, stage, says, module, names=shown, count=count)


def _deed(seen: Seen) -> str:
    verbs = {Kind.ENTER: "calls", Kind.LEAVE: "returns from", Kind.OUTPUT_GRADIENT: "goes back through"}
    if seen.kind in verbs:
        return f"{verbs[seen.kind]} {_module(seen.name)}"
    return f"tells of {seen.kind.value} {seen.name}".rstrip()


def _module(name: str | None) -> str:
    if name is None:
        return "what is around the model"
    return f"module {name}" if name else "the model"


def with_operation(found: Difference, a: Iterable[Seen], b: Iterable[Seen]) -> Difference:
    """`found`, with the first operation within its module that differs; as it was where none can be told."""
    ours = [each for each in a if each.kind is Kind.OPERATION and each.step == found.step]
    theirs = [each for each in b if each.kind is Kind.OPERATION and each.step == found.step]
    for mine, other in zip(ours, theirs, strict=False):
        if (mine.name, mine.says) != (other.name, other.says):
            return replace(found, operation=f"{_call(mine)} in A, {_call(other)} in B")
        if not _is_same(mine.took, other.took):
            return found  # what it takes was not made by an operation that is seen
        if not _is_same(mine.gave, other.gave):
            return replace(found, operation=mine.name)
    if len(ours) != len(theirs):
        extra = (
            (ours or theirs)
            if not (ours and theirs)
            else max(ours, theirs, key=len)[min(len(ours), len(theirs)) :]
        )
        which = "A" if len(ours) > len(theirs) else "B"
        return replace(found, operation=f"{_call(extra[0])}, in {which} alone")
    return found


def _call(seen: Seen) -> str:
    return f"{seen.name}({seen.says})" if seen.says else seen.name


def earliest(found: Iterable[Difference | None]) -> Difference | None:
    """Of the ranks': the one of the lowest step, and in that the one of the earliest stage."""
    stages = list(Stage)
    there = [each for each in found if each is not None]
    return min(there, key=lambda each: (each.step, stages.index(each.stage), each.rank), default=None)
