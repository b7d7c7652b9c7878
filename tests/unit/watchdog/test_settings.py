"""What the watchdog is told at its start, and its clock."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.api.errors import InvalidInput, Unavailable
from holdfast.watchdog.server.clock import WatchdogClock
from holdfast.watchdog.settings import (
    Host,
    KubernetesAuth,
    ListenAddress,
    RedisAddress,
    Succession,
    TlsFiles,
    WatchdogSettings,
    store_address,
)


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
    ["", ":7000", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:-1", "example.com:1", "h:65536"],
)
def test_what_is_no_address_is_refused_and_the_option_named(text: str) -> None:
    with pytest.raises(InvalidInput, match="--listen"):
        ListenAddress.parse(text)


class TestBeyondLoopback:
    kubernetes = KubernetesAuth("https://10.0.0.1:443", Path("/account"), "holdfast", None)
    tls = TlsFiles(Path("/tls/tls.crt"), Path("/tls/tls.key"))

    @pytest.mark.parametrize("text", ["0.0.0.0:1", "10.0.0.1:1", "[::]:1"])
    def test_a_token_file_without_encryption_is_refused(self, text: str) -> None:
        with pytest.raises(InvalidInput, match=r"--listen.*--auth kubernetes"):
            WatchdogSettings(ListenAddress.parse(text), Path("/s/w.db"), Path("/t"))

    def test_tokens_of_the_cluster_or_encryption_open_it(self) -> None:
        everywhere = ListenAddress.parse("0.0.0.0:7077")
        WatchdogSettings(everywhere, Path("/s/w.db"), self.kubernetes)
        WatchdogSettings(everywhere, Path("/s/w.db"), Path("/t"), tls=self.tls)


class TestRedisAddress:
    @pytest.mark.parametrize(
        ("text", "address"),
        [
            ("redis://redis:6379/0", RedisAddress((Host("redis", 6379),))),
            ("redis://redis", RedisAddress((Host("redis", 6379),))),
            ("rediss://redis.svc:7000/3", RedisAddress((Host("redis.svc", 7000),), 3, encrypted=True)),
            ("redis://:p%40ss@h/1", RedisAddress((Host("h", 6379),), 1, password="p@ss")),
            ("redis://me:word@h", RedisAddress((Host("h", 6379),), username="me", password="word")),
            (
                "redis+sentinel://a:1,b,c:3/main/2",
                RedisAddress((Host("a", 1), Host("b", 26379), Host("c", 3)), 2, primary="main"),
            ),
            (
                "rediss+sentinel://:w@a/main",
                RedisAddress((Host("a", 26379),), encrypted=True, password="w", primary="main"),
            ),
        ],
    )
    def test_a_url_names_host_port_and_database(self, text: str, address: RedisAddress) -> None:
        assert RedisAddress.parse(text) == address

    @pytest.mark.parametrize(
        "text",
        [
            *("redis://", "http://h", "redis://h:port", "redis://h/name", "redis://me:word@h:99999/0"),
            *("redis://a,b/0", "redis+sentinel://a,b", "redis+sentinel://a,/main", "redis+cluster://a/main"),
        ],
    )
    def test_anything_else_is_refused_without_telling_the_password(self, text: str) -> None:
        with pytest.raises(InvalidInput, match="--store") as caught:
            RedisAddress.parse(text)
        assert "word" not in str(caught.value)

    def test_the_password_is_in_no_text_of_it(self) -> None:
        address = RedisAddress.parse("redis://me:word@h:1/0")
        assert "word" not in f"{address} {address!r}"
        assert str(address) == "redis://h:1/0"

    def test_a_password_file_goes_before_the_url(self, tmp_path: Path) -> None:
        (tmp_path / "password").write_text("from the file\n")
        address = store_address("redis://:url@h", tmp_path / "password")
        assert isinstance(address, RedisAddress)
        assert address.password == "from the file"

    def test_a_password_file_that_is_not_there_is_unavailable(self, tmp_path: Path) -> None:
        with pytest.raises(Unavailable, match="password file"):
            store_address("redis://h", tmp_path / "nowhere")

    def test_a_file_needs_no_password(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidInput, match="--store-password-file"):
            store_address("w.db", tmp_path / "password")


class TestStateFile:
    listen = ListenAddress("127.0.0.1", 0)

    def test_the_address_is_told_beside_the_file(self) -> None:
        settings = WatchdogSettings(self.listen, Path("/s/w.db"), Path("/t"))
        assert settings.state_file == Path("/s/watchdog.json")

    def test_with_redis_it_is_told_only_where_asked(self) -> None:
        settings = WatchdogSettings(self.listen, RedisAddress((Host("h", 1),)), Path("/t"))
        assert settings.state_file is None
        assert replace(settings, told_in=Path("/x/a.json")).state_file == Path("/x/a.json")


def test_a_lease_too_short_to_be_renewed_is_refused() -> None:
    with pytest.raises(InvalidInput, match="--lease-ttl"):
        WatchdogSettings(
            ListenAddress("127.0.0.1", 0),
            RedisAddress((Host("h", 1),)),
            Path("/t"),
            succession=Succession(ttl_s=0.5),
        )


def test_the_clock_reads_like_the_wall_clock() -> None:
    assert WatchdogClock().now() == pytest.approx(time.time(), abs=5.0)


def test_the_clock_never_reads_earlier_than_what_an_earlier_run_journaled() -> None:
    ahead = time.time() + 3600.0  # the wall clock was set back in between
    clock = WatchdogClock(not_before=ahead)
    first = clock.now()
    assert ahead <= first <= clock.now()
