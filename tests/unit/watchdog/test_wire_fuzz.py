"""Whatever bytes arrive, decoding gives a message or one of the errors the server answers."""

import msgspec
import pytest
from aiohttp import WSMessage, WSMsgType, web
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.api.membership import WorkerExited
from holdfast.watchdog.server import agents, launchers, operators
from holdfast.watchdog.server.frames import BadMessage, decoded

DECODERS = {"launcher": launchers.MESSAGES, "agent": agents.MESSAGES, "operator": operators.MESSAGES}
VALID = msgspec.msgpack.encode(WorkerExited(round=3, rank=1, age_s=0.5, signal=9, error="Killed ✓"))


class OneFrame:
    """A socket on which one frame arrives."""

    def __init__(self, frame: bytes) -> None:
        self._frames = iter([WSMessage(WSMsgType.BINARY, frame, None)])

    def __aiter__(self) -> "OneFrame":
        return self

    async def __anext__(self) -> WSMessage:
        try:
            return next(self._frames)
        except StopIteration:
            raise StopAsyncIteration from None


async def survives(frame: bytes, peer: str) -> None:
    socket: web.WebSocketResponse = OneFrame(frame)  # type: ignore[assignment]
    try:
        async for message in decoded(socket, DECODERS[peer]):
            assert isinstance(message, msgspec.Struct)
    except BadMessage as error:
        assert str(error)  # noqa: PT017 - any text will do


@pytest.mark.parametrize("peer", DECODERS)
@given(frame=st.binary(max_size=200))
@example(frame=b"\x91" * 50_000)
@example(frame=b"\xdf\xff\xff\xff\xff")
@example(frame=b"\x81\xa4type\xa4Join" + b"\x81" * 50_000)
@example(frame=b"\x81\xa4type\xa4\xff\xff\xff\xff")
async def test_random_bytes_are_a_message_or_an_answered_error(peer: str, frame: bytes) -> None:
    await survives(frame, peer)


@pytest.mark.parametrize("peer", DECODERS)
@given(place=st.integers(0, len(VALID) - 1), byte=st.integers(0, 255), cut=st.integers(0, len(VALID)))
async def test_a_damaged_message_is_another_message_or_an_answered_error(
    peer: str, place: int, byte: int, cut: int
) -> None:
    frame = bytearray(VALID)
    frame[place] = byte
    await survives(bytes(frame[:cut]), peer)
    await survives(bytes(frame), peer)
