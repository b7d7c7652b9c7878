"""Asks the launchers of a round where their ranks stand, and waits a moment for the answers."""

import asyncio
import itertools
from collections.abc import Mapping
from typing import Final

import msgspec

from holdfast.api.round import GroupSeat, Round
from holdfast.api.stacks import RankStack, StacksWanted, StackTold
from holdfast.watchdog.server.connection import LauncherConnection, Slot
from holdfast.watchdog.wording import ranks_in_words

WITHIN_S: Final = 1.0
ASKED_MAX: Final = 1024
"""Launchers, at even distances: an answer of each rank of 12,500 nodes would keep a recovery waiting."""
AGAIN_S: Final = 1.0  # who asks sooner, for no incident, is given the same answers


class StackCalls:
    """Of one job. At most one call is open: whoever asks meanwhile waits for the same answers."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._number = 0
        self._round = -1
        self._begun = 0.0
        self._expected: set[int] = set()
        self._told: dict[int, RankStack] = {}
        self._ranks: dict[str, range] = {}
        self._seats: dict[str, GroupSeat] = {}
        self._answer: asyncio.Future[tuple[RankStack, ...]] | None = None

    def ask(
        self,
        launchers: Mapping[str, LauncherConnection],
        round_: Round,
        culprit: str | None = None,
        *,
        anew: bool = False,
    ) -> "asyncio.Future[tuple[RankStack, ...]]":
        """The ranks that answer in time, in order. `culprit` is a member that is asked in any case. `anew`: what
        was answered before is of no use.
        """
        loop = asyncio.get_running_loop()
        known = self._answer if self._round == round_.number and loop.time() < self._begun + AGAIN_S else None
        if known is not None and not (anew and known.done()):
            return known
        self._finish()
        there = [
            share
            for share in round_.ranks
            if (launcher := launchers.get(share.member)) is not None and launcher.tells_stacks
        ]
        stride = -(-len(there) // ASKED_MAX) if there else 1
        asked = [share for at, share in enumerate(there) if at % stride == 0 or share.member == culprit]
        self._number, self._round, self._begun = next(self._numbers), round_.number, loop.time()
        self._ranks = {each.member: range(each.first_rank, each.first_rank + each.local_size) for each in asked}
        seats = {each.member: round_.group_of(each.member) for each in asked}
        self._seats = {member: seat for member, seat in seats.items() if seat is not None}
        self._expected = {rank for ranks in self._ranks.values() for rank in ranks}
        self._told = {}
        self._answer = answer = loop.create_future()
        for share in asked:
            launchers[share.member].show(Slot.STACKS, StacksWanted(round_.number, self._number))
        loop.call_later(WITHIN_S if asked else 0.0, self._finish_call, self._number)
        return answer

    def told(self, member: str, message: StackTold) -> None:
        """One rank's answer. What nobody asked this member for, or no more, is dropped."""
        is_asked = message.stack.rank in self._ranks.get(member, ())
        if (message.round, message.number) != (self._round, self._number) or not is_asked:
            return
        seat = self._seats.get(member)
        self._told[message.stack.rank] = message.stack if seat is None else _within(message.stack, seat)
        if self._told.keys() == self._expected:
            self._finish()

    def _finish_call(self, number: int) -> None:
        if number == self._number:
            self._finish()

    def _finish(self) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(tuple(self._told[rank] for rank in sorted(self._told)))


def _within(stack: RankStack, seat: GroupSeat) -> RankStack:
    """Each replica group counts the collectives of a process group since it met itself: the same name is not the
    same group.
    """
    whose = f" of {ranks_in_words(range(seat.first_rank, seat.first_rank + seat.size))}"
    named = [msgspec.structs.replace(each, group=each.group + whose) for each in stack.collectives]
    return msgspec.structs.replace(stack, collectives=tuple(named))
