"""A lead of a link test, whose members say what they are told to say of each link."""

import asyncio
from collections import Counter
from collections.abc import Callable

import msgspec
import pytest
from patience import patient

from holdfast.agent.linktest.judgement import Measured
from holdfast.agent.linktest.lead import Lead, Order
from holdfast.agent.linktest.wire import TO_MEMBER, Done, Ended, Joined, Ring
from holdfast.api.selftest import Judged, Verdict

NODES = 8
SOUND, SLOW = 3e9, 1e9  # bytes a second
HOST = "127.0.0.1"

Rate = Callable[[frozenset[str], int], float]
"""Of a link, the first time and again."""


async def member(node: str, port: int, rate: Rate, asked: Counter[frozenset[str]]) -> None:
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(msgspec.json.encode(Joined(node, 1)) + b"\n")
    while not isinstance(told := TO_MEMBER.decode(await reader.readline()), Ended):
        says = Done()
        if isinstance(told, Ring) or told.calls:
            link = frozenset((node, told.peer))
            asked[link] += 1
            says = Done(Measured(one=node, other=told.peer, latency_s=1e-4, rate=rate(link, asked[link])))
        writer.write(msgspec.json.encode(says) + b"\n")
    writer.close()


async def judged(rate: Rate, *, gang_s: float = 0.0) -> tuple[Judged, Counter[frozenset[str]]]:
    """What the lead makes of it, and how often each link was asked about."""
    asked: Counter[frozenset[str]] = Counter()
    opened: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    lead = Lead(Order(nodes=NODES, seconds=0.2, turn=0, wait_s=patient(20.0), gang_s=gang_s))
    leading = asyncio.create_task(lead.run(HOST, 0, opened.set_result))
    port = await opened
    await asyncio.gather(*(member(f"n{node}", port, rate, asked) for node in range(NODES)))
    return await leading, asked


IN_DOUBT = frozenset(("n2", "n5"))  # these meet in the first round


async def test_a_link_that_is_slow_once_is_measured_again_and_blamed_for_nothing() -> None:
    found, asked = await judged(lambda link, time: SLOW if link == IN_DOUBT and time == 1 else SOUND)

    assert (found.verdict, found.links) == (Verdict.PASSED, ())
    assert {link for link, times in asked.items() if times == 2} == {IN_DOUBT}, "and no other"


async def test_a_link_that_is_slow_twice_is_blamed() -> None:
    found, asked = await judged(lambda link, _: SLOW if link == IN_DOUBT else SOUND)

    assert [(each.one, each.other) for each in found.links] == [("n2", "n5")]
    assert max(asked.values()) == 2


async def test_nobody_is_asked_again_of_a_node_that_all_its_links_speak_against() -> None:
    found, asked = await judged(lambda link, _: SLOW if "n2" in link else SOUND)

    assert list(found.nodes) == ["n2"]
    assert max(asked.values()) == 1


@pytest.mark.parametrize(("slow_times", "verdict"), [(1, Verdict.PASSED), (2, Verdict.FAILED)])
async def test_rings_go_round_again_where_a_way_in_them_is_in_doubt(slow_times: int, verdict: Verdict) -> None:
    way = frozenset(("n2", "n3"))  # no pair of the first rounds
    found, asked = await judged(
        lambda link, time: SLOW if link == way and time <= slow_times else SOUND, gang_s=0.2
    )

    assert found.verdict is verdict
    assert asked[way] == 2
