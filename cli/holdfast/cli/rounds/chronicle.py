"""The rounds of a job as its journal tells of them."""

from collections.abc import Sequence

import msgspec

from holdfast.api.event import (
    Journaled,
    MemberEntered,
    MemberJoined,
    MembersEntered,
    RestoreReported,
    RoundProgressed,
    RunRecorded,
    entries_of,
)
from holdfast.api.runmanifest import RunManifest


class RoundTold(msgspec.Struct, frozen=True):
    """One round that members entered. Times are the watchdog's clock.

    `ended` is when the next one was entered, None for the newest. `world` is how many ranks entered it, None where
    a member's join is not in the journal any more. `manifest` says how it was started, None: nobody has told.
    `went_on_from` is the step it restored (None: it began anew, or nobody told), `first` and `last` the steps that
    were reported complete in it.
    """

    number: int
    began: float
    ended: float | None = None
    world: int | None = None
    manifest: RunManifest | None = None
    went_on_from: int | None = None
    first: int | None = None
    last: int | None = None


def rounds_of(journal: Sequence[Journaled]) -> tuple[RoundTold, ...]:
    """Every round that was entered, oldest first. A manifest is told when it differs, and holds until the next."""
    sizes: dict[str, int] = {}
    members: dict[int, set[str]] = {}
    found: dict[int, RoundTold] = {}
    manifest: RunManifest | None = None
    for line in journal:
        match line.event:
            case MemberJoined(member=name, local_size=size):
                sizes[name] = size
            case MemberEntered() | MembersEntered():
                for each in entries_of(line.event):
                    if each.round not in found:
                        found[each.round] = RoundTold(each.round, line.at, manifest=manifest)
                    members.setdefault(each.round, set()).add(each.member)
            case RunRecorded(round=number, manifest=manifest) if number in found:
                found[number] = msgspec.structs.replace(found[number], manifest=manifest)
            case RestoreReported(round=number, step=step) if number in found:
                found[number] = msgspec.structs.replace(found[number], went_on_from=step)
            case RoundProgressed(round=number, step=step) if number in found:
                first = found[number].first
                found[number] = msgspec.structs.replace(
                    found[number], first=step if first is None else first, last=step
                )
    order = sorted(found)
    told = []
    for place, number in enumerate(order):
        ended = found[order[place + 1]].began if place + 1 < len(order) else None
        names = members[number]
        world = sum(sizes[name] for name in names) if names <= sizes.keys() else None
        told.append(msgspec.structs.replace(found[number], ended=ended, world=world))
    return tuple(told)
