"""An API server that says nothing any more: the operator notices, and says that it is blind."""

import asyncio
import time
from pathlib import Path

import aiohttp
import pytest
from fake_kubelet import FakeKubelet
from operator_rig import Cluster, OperatorProcess, add_nodes, eventually, phase
from patience import patient

pytestmark = pytest.mark.kubernetes


async def readiness(operator: OperatorProcess) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session:
        answer = await session.get(f"http://127.0.0.1:{operator.port}/readyz")
        return answer.status, await answer.text()


async def test_an_api_server_that_stands_still_is_noticed_and_readiness_says_so(
    cluster: Cluster, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    await add_nodes(kubelet, 2)
    operator.start("--lease-seconds", "900")
    await cluster.apply()
    await kubelet.wait_running(2)
    assert await readiness(operator) == (200, "ok\n")
    assert await operator.metric("holdfast_operator_blind_watches") == 0
    cluster.server.process.pause()
    stood_still_at = time.monotonic()
    try:
        while (said := await readiness(operator))[0] == 200:
            assert time.monotonic() - stood_still_at < 15.0, "nothing was noticed"
            await asyncio.sleep(0.1)
        noticed_s = time.monotonic() - stood_still_at
        assert "silent for 1" in said[1]
        assert await operator.metric("holdfast_operator_blind_watches") > 0
    finally:
        cluster.server.process.resume()

    async def sees() -> bool:
        return (await readiness(operator))[0] == 200

    await eventually("seeing again", sees)
    assert operator.exit_code is None
    print(f"noticed after {noticed_s:.1f} s")


async def test_kinds_of_which_nothing_changes_for_long_are_seen_all_the_same(
    cluster: Cluster, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    """Silence of twenty seconds: longer than it takes to count as blind."""
    await add_nodes(kubelet, 2)
    operator.start()
    await cluster.apply()
    await kubelet.wait_running(2)
    restarted = await operator.metric("holdfast_operator_watch_restarts_total")
    for _ in range(40):
        assert await readiness(operator) == (200, "ok\n")
        await asyncio.sleep(0.5)
    assert await operator.metric("holdfast_operator_watch_restarts_total") == restarted
    await kubelet.end_pod("gpt-0", 1)
    await cluster.until_pods("gpt-1", "gpt-2")


async def _quiet(operator: OperatorProcess) -> None:
    """Until it has written nothing for a while: what is being written is no matter of watches."""
    written = -1.0
    while (now := await operator.writes()) != written:
        written = now
        await asyncio.sleep(1.5)


class Proxy:
    """Before the API server. `freeze` holds all connections there are, and passes nothing on of them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._flows: list[asyncio.Event] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def freeze(self) -> int:
        """How many were held."""
        for flows in self._flows:
            flows.clear()
        held, self._flows = len(self._flows), []
        return held

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        flows = asyncio.Event()
        flows.set()
        self._flows.append(flows)
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        for source, target in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._pass_on(source, target, flows))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, flows: asyncio.Event
    ) -> None:
        try:
            while chunk := await source.read(65536):
                await flows.wait()
                target.write(chunk)
                await target.drain()
        except OSError:
            pass
        finally:
            target.close()


async def test_what_happens_behind_connections_that_a_proxy_only_holds_is_seen_within_ten_seconds(
    cluster: Cluster, kubelet: FakeKubelet, operator: OperatorProcess, tmp_path: Path
) -> None:
    async with Proxy(cluster.server.port) as proxy:
        config = cluster.server.admin_kubeconfig().read_text()
        behind = tmp_path / "behind-a-proxy"
        behind.write_text(config.replace(f":{cluster.server.port}", f":{proxy.port}"))
        operator.sign_in(behind)
        await add_nodes(kubelet, 3)
        operator.start("--lease-seconds", "900")
        await cluster.apply()
        await kubelet.wait_running(2)
        await cluster.until("Running", lambda job: phase(job) == "Running")
        await _quiet(operator)
        assert proxy.freeze() >= 5
        frozen_at = time.monotonic()
        await cluster.api.call("DELETE", f"/api/v1/namespaces/{cluster.namespace}/pods/gpt-0")
        await cluster.until_pods("gpt-1", "gpt-2")
        seen_s = time.monotonic() - frozen_at
        assert seen_s < patient(10.0)
        assert (await readiness(operator))[0] == 200
        operator.stop()
    print(f"seen after {seen_s:.1f} s")
