"""The lines of a watch and the content of an answer, over a real connection."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

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

    application = web.Application()
    application.router.add_get("/watch", serve)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    api = KubeClient(Kubeconfig(str(_kubeconfig(folder, runner.addresses[0][1]))))
    await api.open()
    try:
        yield api
    finally:
        over.set()
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
