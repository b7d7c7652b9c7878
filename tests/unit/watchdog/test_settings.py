"""Where the watchdog may listen, and its clock."""

import time
from pathlib import Path

import pytest

from holdfast.api.errors import InvalidInput
from holdfast.watchdog.clock import WatchdogClock
from holdfast.watchdog.settings import ListenAddress, WatchdogSettings


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:0", ListenAddress("127.0.0.1", 0)),
        ("localhost:7077", ListenAddress("localhost", 7077)),
        ("127.1.2.3:65535", ListenAddress("127.1.2.3", 65535)),
        ("[::1]:7077", ListenAddress("::1", 7077)),
    ],
)
def test_loopback_addresses_are_accepted(text: str, address: ListenAddress) -> None:
    assert ListenAddress.parse(text) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":7000",
        "0.0.0.0:1",
        "10.0.0.1:1",
        "127.0.0.1",
        "127.0.0.1:",
        "127.0.0.1:x",
        "127.0.0.1:-1",
        "[::]:1",
        "h:65536",
    ],
)
def test_anything_else_is_refused_and_the_option_named(text: str) -> None:
    with pytest.raises(InvalidInput, match="--listen"):
        ListenAddress.parse(text)


def test_the_address_is_told_beside_the_store() -> None:
    settings = WatchdogSettings(ListenAddress("127.0.0.1", 0), Path("/s/w.db"), Path("/t"))
    assert settings.state_file == Path("/s/watchdog.json")


def test_the_clock_reads_like_the_wall_clock() -> None:
    assert WatchdogClock().now() == pytest.approx(time.time(), abs=5.0)


def test_the_clock_never_reads_earlier_than_what_an_earlier_run_journaled() -> None:
    ahead = time.time() + 3600.0  # the wall clock was set back in between
    clock = WatchdogClock(not_before=ahead)
    first = clock.now()
    assert ahead <= first <= clock.now()
