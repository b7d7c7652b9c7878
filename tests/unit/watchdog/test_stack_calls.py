"""Asking launchers where their ranks stand: who is asked, whose answers count, and when it is enough."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import pytest

from holdfast.api.round import Endpoint, Entry, MemberRanks, ReplicaGroup, Restore, Round, Tier
from holdfast.api.stacks import Collective, RankStack, StacksWanted, StackTold, Stood
from holdfast.watchdog.server import stackcalls
from holdfast.watchdog.server.stackcalls import StackCalls
from holdfast.watchdog.standstill import evidence_of, stood


@dataclass
class Asked:
    """A launcher's connection, as far as it is shown something."""

    tells_stacks: bool = True
    shown: list[StacksWanted] = field(default_factory=list)

    def show(self, slot: object, message: StacksWanted) -> None:
        self.shown.append(message)


def round_of(count: int, number: int = 3) -> Round:
    """Two ranks a member."""
    shares = tuple(MemberRanks(f"m{at}", f"n{at}", 2 * at, 2) for at in range(count))
    return Round("a/b", number, shares, Endpoint("h", 1), Restore(Tier.CHECKPOINT), Entry.REENTER, "why")


def launchers_of(count: int) -> dict[str, Any]:
    return {f"m{at}": Asked() for at in range(count)}


def told(number: int, rank: int) -> StackTold:
    return StackTold(3, number, RankStack(rank, 1, ("a.py:1 in f",)))


async def test_it_ends_once_every_rank_has_answered() -> None:
    calls, launchers = StackCalls(), launchers_of(2)
    answer = calls.ask(launchers, round_of(2))
    (wanted,) = launchers["m0"].shown
    for member, rank in (("m0", 0), ("m0", 1), ("m1", 3)):
        calls.told(member, told(wanted.number, rank))
    assert not answer.done()
    calls.told("m1", told(wanted.number, 2))
    assert [each.rank for each in await answer] == [0, 1, 2, 3]


async def test_nobody_answers_for_others_or_to_another_call() -> None:
    calls, launchers = StackCalls(), launchers_of(2)
    answer = calls.ask(launchers, round_of(2))
    number = launchers["m0"].shown[0].number
    calls.told("m0", told(number, 2))
    calls.told("m9", told(number, 0))
    calls.told("m0", told(number + 1, 0))
    calls.told("m0", told(number, 1))
    calls._finish()
    assert [each.rank for each in await answer] == [1]


async def test_an_older_launcher_is_not_asked_and_a_call_that_asks_nobody_is_empty() -> None:
    launchers = {"m0": Asked(tells_stacks=False)}
    assert await StackCalls().ask(cast(Any, launchers), round_of(1)) == ()
    assert launchers["m0"].shown == []


async def test_who_asks_meanwhile_waits_for_the_same_answers() -> None:
    calls, launchers = StackCalls(), launchers_of(1)
    first = calls.ask(launchers, round_of(1))
    assert calls.ask(launchers, round_of(1)) is first
    assert len(launchers["m0"].shown) == 1
    other = calls.ask(launchers, round_of(1, number=4))
    assert other is not first
    assert first.done()
    other.cancel()
    await asyncio.sleep(0)


async def test_an_incident_is_not_given_what_was_answered_before_it() -> None:
    calls, launchers = StackCalls(), launchers_of(1)
    first = calls.ask(launchers, round_of(1))
    assert calls.ask(launchers, round_of(1), anew=True) is first, "it is open still"
    for rank in (0, 1):
        calls.told("m0", told(launchers["m0"].shown[0].number, rank))
    assert calls.ask(launchers, round_of(1)) is first
    assert calls.ask(launchers, round_of(1), "m0", anew=True) is not first
    assert len(launchers["m0"].shown) == 2
    await asyncio.sleep(0)


async def test_an_answer_of_another_round_under_the_same_number_is_dropped() -> None:
    calls, launchers = StackCalls(), launchers_of(1)
    answer = calls.ask(launchers, round_of(1, number=4))
    calls.told("m0", told(launchers["m0"].shown[0].number, 0))  # of round 3, asked for by a watchdog before
    calls._finish()
    assert await answer == ()


async def test_of_very_many_some_are_asked_and_the_culprit_is_one_of_them() -> None:
    calls, count = StackCalls(), 3 * stackcalls.ASKED_MAX + 1
    launchers = launchers_of(count)
    calls.ask(launchers, round_of(count), culprit="m1")
    asked = [name for name, each in launchers.items() if each.shown]
    assert "m1" in asked
    assert len(asked) <= stackcalls.ASKED_MAX + 1


@pytest.mark.parametrize(("groups", "was"), [(2, Stood.WAITS), (0, Stood.HELD)])
async def test_what_another_replica_group_counts_under_the_same_name_is_another_group(
    groups: int, was: Stood
) -> None:
    """The first has passed 1001 of its own; who waits in 41 of the second is held by nobody's passing of that."""
    apart = tuple(ReplicaGroup(1 + at, 1, Endpoint("h", at), trains=True) for at in range(groups))
    calls, launchers = StackCalls(), launchers_of(2)
    answer = calls.ask(launchers, msgspec.structs.replace(round_of(2), groups=apart))
    number = launchers["m0"].shown[0].number
    for rank, newest, done in ((0, 1001, True), (1, 1001, True), (2, 41, False), (3, 41, False)):
        collective = Collective("default_pg", newest, "all_reduce", done=done)
        stack = RankStack(rank, 1, ("train.py:1 in f",), (0,), (collective,))
        calls.told(f"m{rank // 2}", StackTold(3, number, stack))
    stacks = await answer
    assert stood(stacks, 2)[1] is was
    behind = [each.says for each in evidence_of(stacks, 4, 1.0) if each.source == "collectives"]
    assert bool(behind) is (groups == 0)
