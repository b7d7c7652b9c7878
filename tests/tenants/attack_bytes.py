"""Bytes and numbers that no honest peer sends cost the stranger its connection, and nobody anything."""

import asyncio

import msgspec
from aiohttp import WSMsgType
from neighbours import Scene
from patience import patient
from peers import join

from holdfast.api.membership import Beat
from holdfast.api.plan import OperatorHello
from holdfast.api.round import Closed
from holdfast.api.telemetry import AgentHello, NodeReport


async def closed(there: Scene, path: str, who: str, *messages: object) -> None:
    """The connection is closed, whatever of it was read."""
    line = await there.connect(path, who)
    for message in messages:
        with_bytes = message if isinstance(message, bytes) else msgspec.msgpack.encode(message)
        await line.send_bytes(with_bytes)
    async with asyncio.timeout(patient(2.0)):
        while (await line.receive()).type is WSMsgType.BINARY:
            pass
    assert line.close_code is not None


async def a_frame_is_no_message(there: Scene) -> None:
    for frame in (b"", b"\xc1", b"\xa4\xff\xff\xff\xff", b"\x91" * 5000, b"x" * (2 << 20)):
        await closed(there, "/v1/member", "pod evil-0", frame)


async def a_number_is_absurd(there: Scene) -> None:
    honest = join("evil-0", job=there.intruder, node="node-1", nodes=(1, 1))
    for wrong in (
        {"shown": 2**64 - 1},
        {"held_round": 2**63},
        {"local_size": 10**6},
        {"ports": tuple(range(1, 60_000))},
        {"nodes": (1, 10**9)},
        {"node": "n" * 300},
        {"boot": "b" * 300},
        {"member": "m" * 300},
        {"transfer_port": -1},
    ):
        await closed(there, "/v1/member", "pod evil-0", msgspec.structs.replace(honest, **wrong))


async def many_connections_say_nothing(there: Scene) -> None:
    lines = await asyncio.gather(*(there.connect("/v1/member", "pod evil-0") for _ in range(80)))
    await asyncio.gather(*(each.close() for each in lines))


async def a_message_of_another_peer_is_said(there: Scene) -> None:
    """What an agent, an operator or the watchdog says, on a launcher's line; and a launcher's before its Join."""
    for message in (
        AgentHello("node-1", "b1", there.victim),
        OperatorHello(there.victim),
        Beat(),
        Closed(there.victim, 10**6, succeeded=True, reason="it is over"),
    ):
        await closed(there, "/v1/member", "pod evil-0", message)


async def a_body_is_too_large_or_no_policy(there: Scene) -> None:
    for body in (b"x" * (1 << 20), b"[" * 100_000, b"\xff", b'{"job": "a/b", "nodes_min": 1e999}'):
        url = f"{there.url}/v1/jobs"
        async with there.http.post(url, data=body, headers=there.headers("operator")) as answer:
            assert answer.status in (400, 413)


async def a_report_is_absurd(there: Scene) -> None:
    """Of an agent that was taken over on another node: its own line ends, and the victim's go on."""
    for wrong in (
        {"round": 2**63},
        {"rank": 2**40},
        {"progress_age_s": float("inf")},
        {"step": 2**60},
        {"pid": -1},
    ):
        sample = msgspec.structs.replace(there.sample(0, 1, "evil-0"), **wrong)
        hello = AgentHello("node-9", "b9", there.intruder)
        await closed(there, "/v1/agent", "agent", hello, NodeReport("node-9", "b9", 1, ranks=(sample,)))


ATTACKS = (
    a_frame_is_no_message,
    a_number_is_absurd,
    many_connections_say_nothing,
    a_message_of_another_peer_is_said,
    a_body_is_too_large_or_no_policy,
    a_report_is_absurd,
)
