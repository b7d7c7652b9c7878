"""A pod's own account, and what a client does about a login that is not taken and a server that is too busy."""

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from holdfast.api.errors import Unavailable
from holdfast.wire.kube.client import TRIES, KubeClient, Request, ServiceAccount
from holdfast.wire.kube.reply import Declined

GET = Request("GET", "/version", timeout_s=2.0)


@asynccontextmanager
async def serving(answer: Callable[[web.Request], web.Response]) -> AsyncIterator[str]:
    async def serve(request: web.Request) -> web.StreamResponse:
        return answer(request)

    application = web.Application()
    application.router.add_get("/version", serve)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


class Renewed:
    """A login whose token is wrong until it was read again."""

    server_name = None
    proxy = None

    def __init__(self, server: str, good: bool = True) -> None:
        self.server = server
        self.token = "old"
        self.loads = 0
        self._good = good

    def tls(self) -> ssl.SSLContext | bool:
        return True

    async def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    async def load(self) -> None:
        self.loads += 1

    async def reload(self) -> bool:
        self.token = "new"
        return self._good

    async def close(self) -> None:
        pass


def only_new(request: web.Request) -> web.Response:
    return web.Response(status=200 if request.headers["Authorization"] == "Bearer new" else 401)


async def test_an_accounts_token_is_read_for_each_request(tmp_path: Path) -> None:
    shown: list[str] = []

    def answer(request: web.Request) -> web.Response:
        shown.append(request.headers["Authorization"])
        return web.Response(text="{}")

    async with serving(answer) as server:
        client = KubeClient(ServiceAccount(server, tmp_path))
        for token in ("first", "second"):
            (tmp_path / "token").write_text(f"{token}\n")
            await client.send(GET)
        (tmp_path / "token").unlink()
        with pytest.raises(Unavailable, match=r"our own token .* cannot be read"):
            await client.send(GET)
        await client.close()
    assert shown == ["Bearer first", "Bearer second"]


def test_an_account_without_a_certificate_to_trust_is_none(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"certificate authority .* cannot be read"):
        ServiceAccount("https://api.example", tmp_path)


async def test_a_login_that_is_not_taken_is_read_again() -> None:
    async with serving(only_new) as server:
        login = Renewed(server)
        client = KubeClient(login)
        assert await client.ask(GET) == b""
        assert login.loads == 1
        await client.close()


async def test_a_login_that_stays_the_same_is_refused_at_once() -> None:
    async with serving(only_new) as server:
        client = KubeClient(Renewed(server, good=False))
        with pytest.raises(Declined, match="401"):
            await client.ask(GET)
        await client.close()


async def test_an_overloaded_server_is_asked_again_and_not_for_ever() -> None:
    tries: list[int] = []

    def answer(request: web.Request) -> web.Response:
        tries.append(len(tries))
        return web.Response(status=429, headers={"Retry-After": "0"})

    async with serving(answer) as server:
        guarded: list[int] = []
        client = KubeClient(Renewed(server))
        with pytest.raises(Unavailable, match="429"):
            await client.ask(GET, lambda: guarded.append(1))
        await client.close()
    assert len(tries) == len(guarded) == TRIES
