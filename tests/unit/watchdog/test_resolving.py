"""Looking up names of hosts without waiting for a name service that hangs."""

import threading
from collections.abc import Iterator

import pytest

from holdfast.watchdog.store.redislink import Resolver


class NameService:
    """Answers what it is told to, and hangs when told to."""

    def __init__(self) -> None:
        self.address: str | None = "10.0.0.1"
        self.free = threading.Event()
        self.free.set()
        self.asked = 0

    def lookup(self, host: str) -> str:
        self.asked += 1
        assert self.free.wait(10.0), "nobody let the name service go on"
        if self.address is None:
            raise OSError("no such name")
        return self.address


@pytest.fixture
def names() -> Iterator[NameService]:
    service = NameService()
    yield service
    service.free.set()


def test_each_connection_asks_anew(names: NameService) -> None:
    resolver = Resolver(names.lookup)
    assert resolver.address("redis") == "10.0.0.1"
    names.address = "10.0.0.2"
    assert resolver.address("redis") == "10.0.0.2"


def test_an_unknown_name_is_said(names: NameService) -> None:
    names.address = None
    with pytest.raises(OSError, match="redis is not known: no such name"):
        Resolver(names.lookup).address("redis")


def test_a_name_once_known_outlives_its_name_service(names: NameService) -> None:
    resolver = Resolver(names.lookup)
    resolver.address("redis")
    names.address = None
    assert resolver.address("redis") == "10.0.0.1"


def test_a_name_service_that_hangs_is_not_waited_for(names: NameService) -> None:
    resolver = Resolver(names.lookup)
    names.free.clear()
    with pytest.raises(OSError, match="could not be looked up within"):
        resolver.address("redis")
    # Nor is it asked again while it still has not answered.
    with pytest.raises(OSError, match="could not be looked up within"):
        resolver.address("redis")
    assert names.asked == 1
    names.free.set()
    assert resolver.address("redis") == "10.0.0.1"


def test_while_it_hangs_the_last_address_serves(names: NameService) -> None:
    resolver = Resolver(names.lookup)
    resolver.address("redis")
    names.free.clear()
    assert resolver.address("redis") == "10.0.0.1"


def test_the_system_knows_this_machine() -> None:
    assert Resolver().address("127.0.0.1") == "127.0.0.1"
