import asyncio
from collections.abc import AsyncIterator

import pytest

from holdfast.cli.embedded.localnode import Relay


@pytest.fixture
async def relay() -> AsyncIterator[Relay]:
    """To one that says everything back."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while said := await reader.read(100):
            writer.write(said)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    relay = Relay(f"{host}:{port}")
    yield relay
    await relay.close()
    server.close()


async def connect(relay: Relay) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = relay.address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def test_what_is_said_while_the_way_is_cut_arrives_once_it_is_open_again(relay: Relay) -> None:
    reader, writer = await connect(relay)
    writer.write(b"one")
    assert await reader.readexactly(3) == b"one"
    cutting = asyncio.create_task(relay.cut(3600.0))
    await asyncio.sleep(0)
    writer.write(b"two")
    _, late = await connect(relay)  # accepted, as by a machine that does not answer
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await reader.readexactly(1)
    cutting.cancel()
    assert await reader.readexactly(3) == b"two"
    for each in (writer, late):
        each.close()


async def test_an_end_is_passed_on(relay: Relay) -> None:
    reader, writer = await connect(relay)
    writer.write(b"x")
    assert await reader.readexactly(1) == b"x"
    await relay.close()
    assert await reader.read() == b""
    writer.close()
