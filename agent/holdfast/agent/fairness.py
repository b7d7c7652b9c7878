"""What fits a report, shared fairly among those whose words it carries.

Any pod of a namespace may leave records of its jobs, and how many is up to the pod. The watchdog takes no report
that is too long, and with it would go what the members of the job say.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from holdfast.api.telemetry import RankSample, Unreadable

# A sample takes 0.8 KiB at most, without its member's name: together less than half of what the watchdog accepts.
RANKS_MAX: Final = 512
UNREADABLE_MAX: Final = 256
Said = TypeVar("Said")


def fitting_ranks(ranks: Sequence[RankSample]) -> tuple[tuple[RankSample, ...], tuple[Unreadable, ...]]:
    """As many samples as a report holds, and a word about the others."""
    kept = _shared(ranks, RANKS_MAX, lambda each: each.member)
    if len(kept) == len(ranks):
        return kept, ()
    says = f"{len(ranks) - len(kept)} of {len(ranks)} records do not fit a report"
    return kept, (Unreadable("ranks", f"{says}: of each pod the first are told"),)


def fitting_problems(problems: Sequence[Unreadable]) -> tuple[Unreadable, ...]:
    """As many problems as a report holds, and a word about the others. A pod's begin with its name."""
    kept = _shared(problems, UNREADABLE_MAX, lambda each: each.source.partition("/")[0])
    if len(kept) == len(problems):
        return kept
    return (*kept, Unreadable("sources", f"{len(problems) - len(kept)} more cannot be read"))


def _shared(said: Sequence[Said], most: int, voice: Callable[[Said], str]) -> tuple[Said, ...]:
    """The first of each voice, `most` in all, in their order: who says little is heard whole."""
    if len(said) <= most:
        return tuple(said)
    places = defaultdict(list)
    for place, each in enumerate(said):
        places[voice(each)].append(place)
    kept: set[int] = set()
    room, voices = most, len(places)
    for own in sorted(places.values(), key=len):
        share = room // voices
        kept.update(own[:share])
        room, voices = room - min(len(own), share), voices - 1
    return tuple(said[place] for place in sorted(kept))
