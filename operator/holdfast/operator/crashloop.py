"""Pods that end right after their start: each is replaced later than the one before.

What is known is read from the ended pods that are there; how many came before them is written on each pod.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.operator.marks import QUICK_ENDS
from holdfast.operator.objects import Pod
from holdfast.operator.podstate import end_of, ran_from_to

QUICK_S = 60.0
FIRST_WAIT_S = 10.0
LONGEST_WAIT_S = 300.0
REMEMBERED_S = 600.0
"""A job that had no quick end for so long begins anew."""
SETTLING_S = 10.0
"""A pod that ended well means that the job is over, as a rule: the watchdog's word is on its way."""


@dataclass(frozen=True, slots=True)
class QuickEnd:
    """One pod that ended quickly: the `count`th in a row. Nothing takes its place before `due`."""

    pod: Pod
    count: int
    due: float

    def says(self) -> str:
        """In a sentence, the same for as long as it is the newest."""
        began, ended = ran_from_to(self.pod)
        return f"{self.pod.metadata.name} ended {ended - began:.0f} s after its start: {end_of(self.pod)}"


@dataclass(frozen=True, slots=True)
class CrashLoop:
    """`newest` is the newest quick end, None when there is none; `count` goes on the next pod.

    `keep` are names of pods that are still needed to know this: the place of each stays empty for now.
    `changes_at` is when that changes next.
    """

    newest: QuickEnd | None = None
    count: int = 0
    changes_at: float | None = None
    keep: frozenset[str] = frozenset()


def crash_loop(ended: Sequence[Pod], now: float) -> CrashLoop:
    """What the ended pods of a job say of its starts."""
    quick = [each for each in map(_quick_end, ended) if each is not None and now < each.due + REMEMBERED_S]
    well = [(pod, ran_from_to(pod)[1] + SETTLING_S) for pod in ended if _ended_well(pod)]
    held = {pod.metadata.name: due for pod, due in (*well, *((each.pod, each.due) for each in quick)) if now < due}
    newest = max(quick, key=lambda each: (each.due, each.count), default=None)
    looping = newest if newest is not None and now < newest.due + QUICK_S else None
    over = [] if looping is None else [looping.due + QUICK_S]
    return CrashLoop(
        newest=looping,
        count=max((each.count for each in quick), default=0),
        changes_at=min((*held.values(), *over), default=None),
        keep=frozenset(held),
    )


def _ended_well(pod: Pod) -> bool:
    return pod.status.phase == "Succeeded"


def _quick_end(pod: Pod) -> QuickEnd | None:
    """None for a pod that ended well or ran for a while."""
    began, at = ran_from_to(pod)
    if _ended_well(pod) or at - began >= QUICK_S:
        return None
    count = _count(pod) + 1
    return QuickEnd(pod, count, at + min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** (count - 1)))


def _count(pod: Pod) -> int:
    text = pod.metadata.annotations.get(QUICK_ENDS, "")
    return min(int(text), 16) if text.isascii() and text.isdigit() else 0
