"""What a stranger sends to the port of a round's store costs it its connection, and nobody anything."""

import contextlib
import os
import random
import resource
import socket
import struct
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest

from holdfast.api.round import Endpoint
from holdfast.trainer import store as round_store
from holdfast.trainer.store import STORE_FRAME_BYTES_MAX, StoreServer
from holdfast.trainer.storetable import (
    Add,
    Answer,
    Append,
    Await,
    Count,
    Hello,
    Request,
    Set,
    StoreTable,
    proof_of,
)
from holdfast.wire.frame import FrameReader, frame

JOB = "research/gpt"
HELLO = msgspec.msgpack.encode(Hello(JOB, 3))


Enter = Callable[[], "Rank"]


@pytest.fixture
def enter(port: int) -> Iterator[Enter]:
    """Gives ranks of the round, as many as are asked for."""
    with contextlib.ExitStack() as stack:
        yield lambda: Rank(stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10.0)))


@pytest.fixture
def port() -> Iterator[int]:
    free = free_port()
    server = StoreServer(StoreTable(JOB, 3), Endpoint("127.0.0.1", free))
    yield free
    server.close()


class Rank:
    """A member of the round: what it asks is answered."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._frames = FrameReader(STORE_FRAME_BYTES_MAX)
        assert self.ask(Hello(JOB, 3)).refused == ""

    def say(self, body: bytes) -> None:
        self._socket.sendall(frame(body, STORE_FRAME_BYTES_MAX))

    def hear(self) -> Answer | None:
        while chunk := self._socket.recv(1 << 16):
            for body in self._frames.feed(chunk):
                return msgspec.msgpack.decode(body, type=Answer)
        return None

    def ask(self, request: Request) -> Answer:
        self.say(msgspec.msgpack.encode(request))
        answer = self.hear()
        assert answer is not None
        return answer


def is_dropped(port: int, sent: bytes) -> bool:
    """Whether a connection that sends this is closed by the other side."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10.0) as stranger,
        contextlib.suppress(
            ConnectionResetError, BrokenPipeError
        ),  # closed while it reads, or while it still sends
    ):
        stranger.sendall(sent)
        while stranger.recv(1 << 16):
            pass
    return True


def framed(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body


INVALID_TEXT = framed(b"\x81\xa4type\xa2\xff\xff")

NOISE = {
    "text that is no UTF-8": INVALID_TEXT,
    "deep nesting": framed(b"\x91" * 100_000),
    "a frame too long": struct.pack("<I", 2**32 - 1),
    "a map that announces 2^32 entries": framed(b"\xdf\xff\xff\xff\xff"),
    "no Hello": framed(msgspec.msgpack.encode(Count())),
    "another round": framed(msgspec.msgpack.encode(Hello(JOB, 4))),
    "a long frame before Hello": framed(b"\xc6" + struct.pack(">I", 1 << 20) + bytes(1 << 20)),
}


@pytest.mark.parametrize("sent", NOISE.values(), ids=NOISE)
def test_strange_bytes_cost_the_stranger_its_connection(port: int, enter: Enter, sent: bytes) -> None:
    rank = enter()
    assert is_dropped(port, sent)
    rank.ask(Set("key", b"value"))
    assert rank.ask(Await(("key",), 1.0)).value == b"value"


MISUSE = {
    "waits for no key": {"type": "Await", "keys": [], "timeout_s": 1.0},
    "waits for ever": {"type": "Await", "keys": ["missing"], "timeout_s": float("inf")},
    "waits for no time": {"type": "Await", "keys": ["missing"], "timeout_s": float("nan")},
    "waits beyond every clock": {"type": "Await", "keys": ["missing"], "timeout_s": 1e300},
    "adds what no number holds": {"type": "Add", "key": "count", "amount": 2**64 - 1},
}


@pytest.mark.parametrize("request_", MISUSE.values(), ids=MISUSE)
def test_what_even_a_rank_may_not_ask_costs_that_rank_alone(enter: Enter, request_: dict[str, object]) -> None:
    rank, other = enter(), enter()
    other.say(msgspec.msgpack.encode(request_))
    assert other.hear() is None
    assert rank.ask(Count()).number == 0


def test_a_count_beyond_every_number_is_refused_and_the_store_goes_on(enter: Enter) -> None:
    rank = enter()
    assert rank.ask(Add("count", 2**62)).number == 2**62
    assert "beyond" in rank.ask(Add("count", 2**62)).refused
    rank.ask(Append("count", b"9" * 5000))
    assert "no number" in rank.ask(Add("count", 1)).refused
    rank.ask(Set("sign", b"--1"))
    assert "no number" in rank.ask(Add("sign", 1)).refused


def test_random_bytes_of_many_strangers_cost_nobody_anything(port: int, enter: Enter) -> None:
    rank, dice = enter(), random.Random(7)
    for _ in range(200):
        with socket.create_connection(("127.0.0.1", port), timeout=10.0) as stranger:
            body = HELLO if dice.random() < 0.3 else b""
            noise = dice.randbytes(dice.randrange(64))
            stranger.sendall((framed(body) if body else b"") + framed(noise) + dice.randbytes(dice.randrange(8)))
    assert rank.ask(Count()).number == 0


def opened(port: int, stack: contextlib.ExitStack, count: int) -> list[socket.socket]:
    """Connections that say nothing."""
    return [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10.0)) for _ in range(count)]


def is_open(connection: socket.socket) -> bool:
    connection.settimeout(0)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def test_strangers_that_say_nothing_leave_the_script_its_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(round_store, "open_files_max", lambda: 64)
    free = free_port()
    server = StoreServer(StoreTable(JOB, 3), Endpoint("127.0.0.1", free))
    with contextlib.closing(server), contextlib.ExitStack() as stack:
        rank = Rank(stack.enter_context(socket.create_connection(("127.0.0.1", free), timeout=10.0)))
        strangers = opened(free, stack, 40)
        # The last one of another address is heard as well; by then all before it have been taken in.
        late = socket.create_connection(("127.0.0.1", free), timeout=10.0, source_address=("127.0.0.2", 0))
        Rank(stack.enter_context(late))
        assert rank.ask(Count()).number == 0
        assert [is_open(each) for each in strangers] == [False] * 36 + [True] * 4


def test_a_stranger_has_only_so_long_to_say_hello() -> None:
    free = free_port()
    server = StoreServer(StoreTable(JOB, 3), Endpoint("127.0.0.1", free), hello_s=0.1)
    with contextlib.closing(server), contextlib.ExitStack() as stack:
        rank = Rank(stack.enter_context(socket.create_connection(("127.0.0.1", free), timeout=10.0)))
        (stranger,) = opened(free, stack, 1)
        assert stranger.recv(1) == b""
        assert rank.ask(Count()).number == 0


def test_out_of_descriptors_the_store_waits_and_burns_no_processor(
    port: int, enter: Enter, caplog: pytest.LogCaptureFixture
) -> None:
    rank = enter()
    late = socket.socket()
    late.settimeout(10.0)
    with contextlib.ExitStack() as stack:
        stack.enter_context(late)
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, resource.getrlimit(resource.RLIMIT_NOFILE))
        held = hold_all_descriptors()
        stack.callback(lambda: [os.close(each) for each in held])
        late.connect(("127.0.0.1", port))
        before_s = time.process_time()
        time.sleep(0.5)
        spent_s = time.process_time() - before_s
        assert rank.ask(Count()).number == 0
        for each in held:
            os.close(each)
        held.clear()
        Rank(late)
    assert spent_s < 0.1
    assert caplog.text.count("ranks wait for the round's store") == 1


def hold_all_descriptors() -> list[int]:
    """Lower the limit to little more than what is open, and take the rest."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(int(each) for each in os.listdir("/proc/self/fd")) + 8
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    held = []
    while True:
        try:
            held.append(os.dup(0))
        except OSError:
            return held


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        free: int = probe.getsockname()[1]
    return free


def test_who_takes_no_answers_keeps_nobody_waiting_and_loses_its_connection(port: int, enter: Enter) -> None:
    rank = enter()
    rank.ask(Set("big", bytes(12 << 20)))
    greedy = [enter() for _ in range(3)]
    for each in greedy:
        each.say(msgspec.msgpack.encode(Await(("big",), 1.0)))
    began = time.monotonic()
    assert rank.ask(Count()).number == 1
    assert time.monotonic() - began < 1.0
    # A second answer is more than a rank ever has to take; what it asks after it counts no more.
    for _ in range(2):
        greedy[0].say(msgspec.msgpack.encode(Await(("big", "more"), 60.0)))
    rank.ask(Set("more", bytes(12 << 20)))
    assert rank.ask(Count()).number == 2
    with contextlib.suppress(ConnectionError):  # closed while much of it lay unread
        while greedy[0].hear() is not None:
            pass
    answer = greedy[1].hear()
    assert answer is not None
    assert len(answer.value) == 12 << 20


def test_who_does_not_know_the_life_of_the_job_does_not_get_in() -> None:
    free = free_port()
    server = StoreServer(StoreTable(JOB, 3, "uid-1"), Endpoint("127.0.0.1", free))
    with contextlib.closing(server):
        for proof in (b"", proof_of("uid-2", JOB, 3), proof_of("uid-1", JOB, 2)):
            assert is_dropped(free, framed(msgspec.msgpack.encode(Hello(JOB, 3, proof))))
        with socket.create_connection(("127.0.0.1", free), timeout=10.0) as member:
            hello = Hello(JOB, 3, proof_of("uid-1", JOB, 3))
            member.sendall(framed(msgspec.msgpack.encode(hello)) + framed(msgspec.msgpack.encode(Count())))
            assert member.recv(1) != b""
