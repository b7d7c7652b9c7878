"""The store a round forms with, over real connections."""

import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import msgspec
import pytest
import torch.distributed as dist
from patience import patient
from server_process import free_port

from holdfast.api.control import Assignment
from holdfast.api.errors import Unavailable
from holdfast.api.round import Endpoint, Restore
from holdfast.trainer.store import RoundStore, meet
from holdfast.trainer.storetable import Hello, Set
from holdfast.wire.frame import frame


class GivenUp(Exception):
    pass


def never() -> None:
    pass


def part(rank: int, port: int, *, round: int = 3) -> Assignment:
    return Assignment("tests/store", round, rank, rank, 2, 2, Endpoint("127.0.0.1", port), Restore(), "test")


def stores(port: int) -> tuple[RoundStore, RoundStore]:
    return meet(part(0, port), timeout_s=10, check=never), meet(part(1, port), timeout_s=10, check=never)


def raises_after(calls: int) -> Callable[[], None]:
    left = iter(range(calls))

    def check() -> None:
        if next(left, None) is None:
            raise GivenUp

    return check


def test_what_one_rank_sets_the_other_gets() -> None:
    host, guest = stores(free_port())
    guest.set("address", "127.0.0.1")
    assert host.get("address") == b"127.0.0.1"
    assert guest.add("ready", 1) + host.add("ready", 1) == 3
    assert host.check(["address", "ready"])
    assert guest.compare_set("leader", "", "1") == b"1"
    assert host.num_keys() == 3
    assert host.delete_key("leader")
    guest.append("log", "a")
    guest.close()
    host.close()


def test_a_wait_ends_when_the_key_comes() -> None:
    host, guest = stores(free_port())
    waiter = threading.Thread(target=guest.wait, args=(["late"], timedelta(seconds=10)))
    waiter.start()
    host.set("late", b"1")
    waiter.join()
    guest.close()
    host.close()


def test_a_wait_that_takes_too_long_is_an_error_after_which_the_store_still_works() -> None:
    host, guest = stores(free_port())
    with pytest.raises(dist.DistStoreError, match="wait timeout"):
        guest.wait(["never"], timedelta(milliseconds=10))
    guest.set("key", b"1")
    assert host.get("key") == b"1"
    guest.close()
    host.close()


def test_a_store_that_goes_away_is_a_network_error() -> None:
    host, guest = stores(free_port())
    host.close()
    with pytest.raises(dist.DistNetworkError):
        guest.get("key")
    guest.close()


def test_a_store_that_is_silent_is_waited_for_as_long_as_a_peer_in_a_collective() -> None:
    """A process that holds the interpreter is no worse than another one that hangs."""
    ours, theirs = socket.socketpair()
    guest = RoundStore(ours, server=None, timeout_s=0.05)
    began = time.monotonic()
    with theirs, pytest.raises(dist.DistNetworkError, match="does not answer"):
        guest.check(["key"])
    assert 0.05 <= time.monotonic() - began < 30.0
    guest.close()


def test_a_rank_of_an_older_round_is_turned_away() -> None:
    port = free_port()
    host = meet(part(0, port, round=4), timeout_s=10, check=never)
    with pytest.raises(Unavailable, match="not of tests/store round 3"):
        meet(part(1, port, round=3), timeout_s=10, check=never)
    host.close()


def test_what_a_stranger_sends_after_its_greeting_is_not_heard() -> None:
    port = free_port()
    host, guest = stores(port)
    requests = (Hello("tests/store", 2), Set("key", b"forged"))
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.sendall(b"".join(frame(msgspec.msgpack.encode(request)) for request in requests))
        stranger.settimeout(patient(10))
        while stranger.recv(100):
            pass
    assert not host.check(["key"])
    guest.close()
    host.close()


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.1\r\n\r\n", b"\x01\x00\x00\x00\xc1", b"\xff\xff\xff\xff"])
def test_who_speaks_another_language_is_cut_off_and_disturbs_nobody(noise: bytes) -> None:
    port = free_port()
    host, guest = stores(port)
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.settimeout(patient(10))
        stranger.sendall(noise)
        assert stranger.recv(1) == b""
    guest.set("key", b"1")
    assert host.get("key") == b"1"
    guest.close()
    host.close()


def test_meeting_is_given_up_when_the_round_ends() -> None:
    with pytest.raises(GivenUp):
        meet(part(1, free_port()), timeout_s=60, check=raises_after(3))


def test_meeting_is_given_up_when_nobody_comes() -> None:
    with pytest.raises(Unavailable, match="no store listens"):
        meet(part(1, free_port()), timeout_s=0.02, check=never)


def test_an_endpoint_that_is_taken_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(Unavailable, match="cannot listen"):
        meet(part(0, taken.getsockname()[1]), timeout_s=1, check=never)
