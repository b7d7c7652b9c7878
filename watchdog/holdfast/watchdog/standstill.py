"""What the stacks and the last collectives of all ranks say of a round that stands still, in ten lines at most.

In synchronous training most ranks wait at one place for those that are elsewhere, so ranks at the same place share
a line, and the fewest come first. Of the collectives a group's ranks must issue the same ones in the same order:
the first at which they differ is named, and who has not issued the newest.

Pure: no I/O, no clock.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from holdfast.api.finding import Evidence
from holdfast.api.stacks import Collective, RankStack, Standstill, Stood
from holdfast.watchdog.wording import ranks_in_words

LINES_MAX: Final = 10
CHARACTERS_MAX: Final = 1000
OWN_SHOWN: Final = 3
SIDES_SHOWN: Final = 4
# Their inputs may differ in shape from rank to rank.
UNEVEN: Final = ("all_to_all", "alltoall", "alltoall_base", "scatter", "gather", "barrier", "allgather_v")


def standstill(told: Sequence[RankStack], world_size: int) -> Standstill:
    """What `told` says, each rank once."""
    return Standstill(
        world_size=world_size,
        told=len(told),
        stacks=tuple(map(_plain, _stacks(told))),
        collectives=tuple(map(_plain, islice(_collectives(told), LINES_MAX))),
    )


def evidence_of(told: Sequence[RankStack], world_size: int, at: float) -> tuple[Evidence, ...]:
    """The same as evidence, what is wrong first."""
    found = standstill(told, world_size)
    lines = (*(("collectives", says) for says in found.collectives), *(("stacks", says) for says in found.stacks))
    return tuple(Evidence(source, says, at) for source, says in lines)


def stood(told: Sequence[RankStack], rank: int | None) -> tuple[str, Stood]:
    """The innermost line of the script at which `rank` stood, "" where it is not known; and what it was in.

    A collective that it had issued and that is not over is what it was in, wherever the line is: on a GPU the host
    goes on, and stands where it asks for the result.
    """
    stack = next((each for each in told if each.rank == rank), None)
    line = "" if stack is None else next(_own_lines(stack), "")
    if stack is None or not line:
        return "", Stood.UNKNOWN
    in_it = [one for one in stack.collectives if not _has_passed(stack, one)]
    others = [each for each in told if each.rank != rank]
    # Of a gather or a broadcast others are done before all have come: whoever has not come may keep this one.
    come = (one for one in in_it if all(_has_come(each, one) for each in others))
    if any(_has_passed(each, one) for one in come for each in others):
        return _plain(line), Stood.HELD
    return _plain(line), Stood.WAITS if in_it else Stood.OWN


def _has_come(stack: RankStack, one: Collective) -> bool:
    """Whether this rank has issued that collective, as far as it tells of its group."""
    known = [each.sequence for each in stack.collectives if each.group == one.group]
    return not known or max(known) >= one.sequence


def _has_passed(stack: RankStack, one: Collective) -> bool:
    """Whether this rank is done with that collective of its group, or came to a later one and does not tell of it
    as one that it is in. They end in the order they are issued in.
    """
    known = [each for each in stack.collectives if each.group == one.group]
    over = max((each.sequence for each in known if each.done), default=-1)
    is_in = any(over < each.sequence <= one.sequence for each in known if not each.done)
    return one.sequence <= over or (not is_in and any(each.sequence > one.sequence for each in known))


def _own_lines(stack: RankStack) -> Iterator[str]:
    """Those of the user's own, the innermost first."""
    return (stack.frames[at] for at in stack.own if at < len(stack.frames))


def _plain(says: str) -> str:
    """One line of bounded length: names are what a job's processes say, and are shown in terminals."""
    shown = says if len(says) <= CHARACTERS_MAX else f"{says[: CHARACTERS_MAX - 3]}..."
    return "".join(each if each.isprintable() else "?" for each in shown)


def _stacks(told: Sequence[RankStack]) -> Iterator[str]:
    places: dict[str, list[int]] = defaultdict(list)
    for each in told:
        places[_place(each)].append(each.rank)
    fewest_first = sorted(places.items(), key=lambda place: (len(place[1]), place[1]))
    shown = fewest_first if len(fewest_first) <= LINES_MAX else fewest_first[: LINES_MAX - 2] + fewest_first[-1:]
    for place, ranks in shown:
        yield f"{ranks_in_words(sorted(ranks))} of {len(told)}: {place}"
    if (rest := len(fewest_first) - len(shown)) > 0:
        others = sum(len(ranks) for _, ranks in fewest_first) - sum(len(ranks) for _, ranks in shown)
        yield f"{others} other ranks are at {rest} other places"


def _place(stack: RankStack) -> str:
    """The innermost line, and the innermost ones of the user's own."""
    if not stack.frames:
        return stack.missing or "its stack is not known"
    own = list(_own_lines(stack))
    inner = [stack.frames[0]] if not own or own[0] != stack.frames[0] else []
    return ", from ".join([*inner, *own[:OWN_SHOWN]])


def _collectives(told: Iterable[RankStack]) -> Iterator[str]:
    groups: dict[str, dict[int, dict[int, Collective]]] = defaultdict(lambda: defaultdict(dict))
    newest: dict[str, dict[int, Collective]] = defaultdict(dict)
    for stack in told:
        for each in stack.collectives:
            groups[each.group][each.sequence][stack.rank] = each
            if each.sequence >= newest[each.group].get(stack.rank, each).sequence:
                newest[each.group][stack.rank] = each
    for group, by_sequence in groups.items():
        yield from _mismatch(group, by_sequence)
        yield from _behind(group, newest[group])


def _mismatch(group: str, by_sequence: Mapping[int, Mapping[int, Collective]]) -> Iterator[str]:
    for sequence in sorted(by_sequence):
        issued = by_sequence[sequence]
        sides = Counter(_kind(each) for each in issued.values())
        if len(sides) < 2:
            continue
        said = []
        for kind, _ in reversed(sides.most_common(SIDES_SHOWN)):
            ranks = sorted(rank for rank, each in issued.items() if _kind(each) == kind)
            said.append(f"{ranks_in_words(ranks)} issued {_in_words(issued[ranks[0]])}")
        yield f"collective {sequence} of {group} is not the same on all ranks: {'; '.join(said)}"
        return


def _kind(collective: Collective) -> tuple[str, str]:
    shapes = "" if collective.operation.lstrip("_") in UNEVEN else collective.shapes
    return collective.operation, shapes


def _behind(group: str, newest: Mapping[int, Collective]) -> Iterator[str]:
    furthest = max(each.sequence for each in newest.values())
    behind = sorted(rank for rank, each in newest.items() if each.sequence < furthest)
    if not behind:
        return
    ahead = next(each for each in newest.values() if each.sequence == furthest)
    slowest = min(behind, key=lambda rank: newest[rank].sequence)
    count = len(newest) - len(behind)
    yield (
        f"{ranks_in_words(behind)} did not reach collective {furthest} of {group}, where {count} wait in "
        f"{_in_words(ahead)}; rank {slowest} came to {newest[slowest].sequence}, {_in_words(newest[slowest])}"
    )


def _in_words(collective: Collective) -> str:
    what = f"{collective.operation} of {collective.shapes}" if collective.shapes else collective.operation
    return f"{what} at {collective.place}" if collective.place else what
