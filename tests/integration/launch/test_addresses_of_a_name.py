"""The watchdog's name stands for all watchdogs: one whose node is gone costs no time-out."""

import asyncio
import logging
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from fake_watchdog import JOB, TOKEN, FakeWatchdog

from holdfast.agent.launch.connection import Connection
from holdfast.api.membership import Join
from holdfast.api.standing import STANDBY_STATUS, STANDING_HEADER, Standing
from holdfast.cli.watchdogclient import DirectLine
from holdfast.watchdog.leadership import ServicePeer
from holdfast.wire.access import Access, Address, Credential
from holdfast.wire.http import WatchdogHttp

NAME, GONE, THERE = "watchdogs.test", "127.0.0.2", "127.0.0.1"


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """NAME has two addresses, and the one that is gone comes first."""
    lookup = socket.getaddrinfo

    def found(host: Any, port: Any, *rest: Any, **more: Any) -> Any:
        if host != NAME:
            return lookup(host, port, *rest, **more)
        return [lookup(address, port, *rest, **more)[0] for address in (GONE, THERE)]

    monkeypatch.setattr(socket, "getaddrinfo", found)


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A port that answers nothing, as on a node without power: what wants to connect is not even refused."""
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind((GONE, 0))
        listener.listen(0)
        for each in (first, second):  # the kernel takes one more than it is told to
            each.settimeout(0.0)
            each.connect_ex(listener.getsockname())
        yield listener


async def test_a_launcher_passes_an_address_that_does_not_answer(
    names: None, silent: socket.socket, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "token").write_text(TOKEN)
    join = Join(JOB, "m0", "node-0", "b", THERE, local_size=1, ports=(29500,), warm=True)
    met = asyncio.Event()
    async with FakeWatchdog(port=silent.getsockname()[1], on_heard=lambda _: met.set()) as watchdog:
        connection = Connection(
            Access(Address(NAME, watchdog.port), Credential(file=tmp_path / "token")),
            job=JOB,
            heartbeat_interval_s=0.3,
            join=lambda: join,
            on_shown=lambda _: None,
        )
        with caplog.at_level(logging.WARNING):
            running = asyncio.create_task(connection.run())
            await met.wait()
            running.cancel()
    assert "away" not in caplog.text, "the first try met the watchdog that is there"


class Answering(BaseHTTPRequestHandler):
    """A standby, or a leader where that is its address."""

    def do_GET(self) -> None:
        leads = self.server.server_address[0] == THERE
        body = b'{"status": "leading", "fence": 7}' if leads else b'{"status": "standby"}'
        self.send_response(200 if leads else STANDBY_STATUS)
        self.send_header(STANDING_HEADER, Standing.LEADING if leads else Standing.STANDBY)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def pair() -> Iterator[int]:
    """A standby at the first address and a leader at the second; their port."""
    with ThreadingHTTPServer((GONE, 0), Answering) as standby:
        port = standby.server_port
        with ThreadingHTTPServer((THERE, port), Answering) as leader:
            for each in (standby, leader):
                threading.Thread(target=each.serve_forever, daemon=True).start()
            yield port
            for each in (standby, leader):
                each.shutdown()


async def test_a_name_is_looked_up_for_each_connection(monkeypatch: pytest.MonkeyPatch, pair: int) -> None:
    """An upgrade gives it other addresses: whoever keeps the old ones for a while comes back too late."""
    lookup, addresses = socket.getaddrinfo, [GONE]

    def found(host: Any, port: Any, *rest: Any, **more: Any) -> Any:
        answer = lookup(addresses[-1] if host == NAME else host, port, *rest, **more)
        addresses.append(THERE)
        return answer

    monkeypatch.setattr(socket, "getaddrinfo", found)
    asking = WatchdogHttp(Access(Address(NAME, pair), Credential(TOKEN)))
    try:
        assert b"leading" in (await asking.ask("GET", "/readyz") or b"")
    finally:
        await asking.close()


async def test_a_watchdog_that_asks_who_leads_meets_all_of_a_name(names: None, pair: int) -> None:
    assert await ServicePeer(f"http://{NAME}:{pair}", None).fence() == 7


def test_a_command_meets_the_leader_behind_a_name(names: None, pair: int) -> None:
    answer = DirectLine(Access(Address(NAME, pair), Credential(TOKEN)), token_of="a test").ask("GET", "/readyz")
    assert b"leading" in answer
