"""The lines of a watch and the content of an answer, over a real connection."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from holdfast.api.errors import Unavailable
from holdfast.wire.kube.client import KubeClient, Request, TooLong
from holdfast.wire.kube.kubeconfig import Kubeconfig


@asynccontextmanager
async def watched(folder: Path, *chunks: bytes) -> AsyncIterator[KubeClient]:
    """An API server that sends these and then keeps silent."""
    over = asyncio.Event()

    async def serve(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        for chunk in chunks:
            await answer.write(chunk)
        await over.wait()
        return answer

    async with asking(folder, "/watch", serve) as api:
        yield api
        over.set()


@asynccontextmanager
async def asking(
    folder: Path,
    path: str,
    serve: Callable[[web.Request], Awaitable[web.StreamResponse]],
    *,
    is_near: bool = False,
) -> AsyncIterator[KubeClient]:
    """A client of a server that answers at `path`."""
    application = web.Application()
    application.router.add_get(path, serve)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    api = KubeClient(Kubeconfig(str(_kubeconfig(folder, runner.addresses[0][1]))), is_near=is_near)
    await api.open()
    try:
        yield api
    finally:
        await api.close()
        await runner.cleanup()


def _kubeconfig(folder: Path, port: int) -> Path:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    return path


async def test_a_silent_watch_ends_as_if_the_server_had_ended_it(tmp_path: Path) -> None:
    async with watched(tmp_path, b'{"a"', b":1}\n{}\n{") as api:
        lines = [line async for line in api.lines(Request("WATCH", "/watch", timeout_s=None), silence_s=0.2)]
    assert [line for line in lines if line] == [b'{"a":1}', b"{}"]


async def test_an_answer_that_is_too_long_is_not_read_to_its_end(tmp_path: Path) -> None:
    async with watched(tmp_path, *[b"x" * 60_000] * 3) as api:  # and more, for which nobody waits
        with pytest.raises(TooLong, match="exceeds 100000 bytes"):
            await api.ask(Request("GET", "/watch", bytes_max=100_000))


@pytest.mark.parametrize(("is_near", "encoding"), [(True, None), (False, "gzip")])
async def test_answers_are_compressed_over_a_slow_line_alone(
    tmp_path: Path, is_near: bool, encoding: str | None
) -> None:
    sent: list[str | None] = []

    async def serve(request: web.Request) -> web.StreamResponse:
        answer = web.Response(body=b"x" * 200_000)
        if "gzip" in request.headers.get("Accept-Encoding", ""):  # as an API server does
            answer.enable_compression(web.ContentCoding.gzip)
        await answer.prepare(request)
        sent.append(answer.headers.get("Content-Encoding"))
        return answer

    async with asking(tmp_path, "/pods", serve, is_near=is_near) as api:
        assert await api.ask(Request("GET", "/pods")) == b"x" * 200_000
    assert sent == [encoding]


async def test_after_a_silence_nothing_is_asked_on_a_connection_of_before(tmp_path: Path) -> None:
    """What holds one connection may hold all of them: a proxy, or a network that forgot them."""
    peers: list[object] = []

    async def serve(request: web.Request) -> web.StreamResponse:
        peers.append(request.transport)
        if request.query.get("watch"):
            answer = web.StreamResponse()
            await answer.prepare(request)
            await asyncio.Event().wait()
        return web.Response(body=b"{}")

    async with asking(tmp_path, "/pods", serve) as api:
        await api.ask(Request("GET", "/pods"))
        await api.ask(Request("GET", "/pods"))
        assert peers[0] is peers[1], "it is kept as long as all is well"
        watch = Request("WATCH", "/pods", {"watch": "1"}, timeout_s=None)
        assert [line async for line in api.lines(watch, silence_s=0.05)] == [b""]
        await api.ask(Request("GET", "/pods"))
    assert peers[3] not in peers[:3]


async def test_a_watch_that_nobody_takes_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.wire.kube.client.TAKEN_TIMEOUT_S", 0.05)

    async def serve(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async with asking(tmp_path, "/pods", serve) as api:
        lines = api.lines(Request("WATCH", "/pods", timeout_s=None), silence_s=-0.95)
        with pytest.raises(Unavailable, match="does not answer WATCH /pods"):
            await anext(lines)
