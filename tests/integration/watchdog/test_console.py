"""A real watchdog, a real console beside it, and readers of it."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner
from console_contract import check
from forgetful_store import MemoryStore
from patience import patient
from peers import (
    INGEST_TOKEN,
    JOB,
    PATIENCE_S,
    TOKEN,
    VIEW_TOKEN,
    AgentPeer,
    LauncherPeer,
    Rig,
    bearer,
    policy_of,
    rigged,
)
from server_process import free_port

from holdfast.api.membership import Beat, WorkerExited
from holdfast.api.rankrecord import Phase
from holdfast.api.telemetry import AgentHello, GpuHealth, GpuSample, NodeReport, ProcessState, RankSample
from holdfast.cli.embedded.console import ConsoleProcess
from holdfast.cli.main import holdfast
from holdfast.cli.statedirectory import StateDirectory
from holdfast.watchdog.senses import senses_for

INCIDENT_WITHIN_S = patient(1.0)
PATH = f"/api/v1/jobs/{JOB}"


class Shown:
    """A console process and a client of it."""

    def __init__(self, process: asyncio.subprocess.Process, told_in: Path, http: aiohttp.ClientSession) -> None:
        self.process = process
        self.told_in = told_in
        self.http = http

    async def get(self, path: str, *, token: str = TOKEN) -> tuple[int, Any]:
        async with self.http.get(self.url(path), headers=bearer(token)) as answer:
            return answer.status, json.loads(await answer.read())

    def url(self, path: str) -> str:
        at = json.loads(self.told_in.read_text())
        return f"http://127.0.0.1:{at['port']}{path}"

    async def until(self, path: str, accepted: Any, *, token: str = TOKEN) -> Any:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if self.told_in.exists():
                    try:
                        status, body = await self.get(path, token=token)
                    except aiohttp.ClientError:
                        status, body = 0, None
                    if accepted(status, body):
                        return body
                await asyncio.sleep(0.05)

    @asynccontextmanager
    async def events(self) -> AsyncIterator["Events"]:
        async with self.http.get(self.url(f"{PATH}/events"), headers=bearer(TOKEN)) as answer:
            assert answer.status == 200
            yield Events(answer.content)


class Events:
    """A stream of a job's events."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    async def next(self, *names: str) -> tuple[str, Any]:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                line = (await self._content.readline()).decode().strip()
                if line.startswith("event: ") and (name := line.removeprefix("event: ")) in names:
                    said = (await self._content.readline()).decode().removeprefix("data: ")
                    return name, json.loads(said)


@asynccontextmanager
async def shown_for(rig: Rig, folder: Path, *, token: str = TOKEN) -> AsyncIterator[Shown]:
    """A console of the rig's watchdog. Its log is read at the end: no token may be in it."""
    (folder / "token").write_text(token)
    told_in = folder / "console.json"
    words = ("--watchdog", f"127.0.0.1:{rig.server.port}", "--token-file", str(folder / "token"))
    with (folder / "console.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "holdfast.console", *words, "--listen", "127.0.0.1:0"),
            *("--state-file", str(told_in), "--log-level", "DEBUG"),
            stdout=log,
            stderr=log,
        )
    try:
        async with aiohttp.ClientSession(read_bufsize=2**22) as http:
            yield Shown(process, told_in, http)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
    assert TOKEN not in (folder / "console.log").read_text()


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with rigged(senses=senses_for) as made:
        yield made


class Trains:
    """A job of two members that is busy while this stands."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self.launchers: list[LauncherPeer] = []
        self.number = 0

    async def __aenter__(self) -> "Trains":
        await self._rig.submit(policy_of(lost_after_s=600.0))
        self.launchers = [await self._rig.launcher(name) for name in ("m-0", "m-1")]
        self.number = (await asyncio.gather(*(each.enter() for each in self.launchers)))[0].number
        self._agents = [AgentPeer(await self._rig.connect("/v1/agent")) for _ in self.launchers]
        for index, agent in enumerate(self._agents):
            await agent.say(AgentHello(f"node-m-{index}", "boot", JOB))
        self._busy = asyncio.create_task(self._be_busy())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._busy.cancel()
        await asyncio.gather(self._busy, return_exceptions=True)

    async def _be_busy(self) -> None:
        for sequence in self._sequences():
            for index, agent in enumerate(self._agents):
                rank = RankSample(
                    *(self.number, index, ProcessState.RUNNING, Phase.BACKWARD, 0.1, 0.1),
                    *(0.05, 100 + index, sequence, 0.2, 2.5, 1.0, 4096),
                )
                gpu = GpuSample(f"GPU-{index}", 0, GpuHealth.HEALTHY, 61.0)
                await agent.say(NodeReport(f"node-m-{index}", "boot", sequence, ranks=(rank,), gpus=(gpu,)))
                await self.launchers[index].say(Beat())
            await asyncio.sleep(0.2)

    @staticmethod
    def _sequences() -> Iterator[int]:
        number = 0
        while True:
            number += 1
            yield number

    async def break_rank(self) -> None:
        await self.launchers[0].say(WorkerExited(self.number, 0, 0.0, signal=9, began=True))


async def test_what_a_watchdog_knows_is_shown_as_it_happens(rig: Rig, tmp_path: Path) -> None:
    async with Trains(rig) as job, shown_for(rig, tmp_path) as shown:
        await shown.until("/healthz", lambda status, _: status == 200)
        listed = await shown.until("/api/v1/jobs", lambda status, body: status == 200 and body["jobs"])
        assert [f"{each['namespace']}/{each['name']}" for each in listed["jobs"]] == [JOB]
        document = await shown.until(PATH, lambda status, body: status == 200 and _is_whole(body))
        assert [node["ranks"] for node in document["nodes"]] == [[0], [1]]
        async with shown.events() as events:
            _, first = await events.next("job")
            assert first["nodes"] == document["nodes"]
            _, point = await events.next("series")
            assert (point["loss_median"], point["tokens_s"]) == (2.5, 2 * 4096 / 0.2)
            began = asyncio.get_running_loop().time()
            await job.break_rank()
            _, told = await events.next("incident")
            took_s = asyncio.get_running_loop().time() - began
            assert (told["kind"], told["state"]) == ("ProcessExit", "Open")
            assert took_s < INCIDENT_WITHIN_S
            _, later = await events.next("job")
            assert [each["id"] for each in later["incidents"]] == [told["id"]]
        await asyncio.to_thread(check, shown.url("/"), TOKEN, JOB)
        status, runbook = await shown.get(f"{PATH}/runbook/hung")
        assert (status, runbook["symptom"]) == (200, "hung")
        assert {each["verdict"] for each in runbook["checks"]} & {"suspect", "unknown"}
        assert (await shown.get(f"{PATH}/runbook/no-such-symptom"))[0] == 400


async def test_each_may_what_the_watchdog_lets_him(rig: Rig, tmp_path: Path) -> None:
    await rig.submit(policy_of())
    asked = {"id": "i1", "job": JOB, "action": "Pause", "reason": "a look at the nodes"}
    async with shown_for(rig, tmp_path, token=VIEW_TOKEN) as shown:
        await shown.until(PATH, lambda status, _: status == 200)
        assert (await shown.get(f"/api/v1/whoami?job={JOB}", token=VIEW_TOKEN))[1]["may"] == ["view", "logs"]
        assert (await shown.get(PATH, token="nobody-knows-this-token"))[0] == 401
        assert (await shown.get(PATH, token=INGEST_TOKEN))[0] == 403
        assert (await shown.get("/api/v1/jobs", token=INGEST_TOKEN)) == (200, {"jobs": []})
        async with shown.http.post(
            shown.url(f"{PATH}/interventions"), json=asked, headers=bearer(VIEW_TOKEN)
        ) as answer:
            assert (answer.status, "needs the role operate" in await answer.text()) == (403, True)
        async with shown.http.post(
            shown.url(f"{PATH}/interventions"), json=asked, headers=bearer(TOKEN)
        ) as answer:
            assert (answer.status, (await answer.json())["state"]) == (200, "Done")
        assert rig.watchdog.known(JOB) is not None
        await shown.until(PATH, lambda status, body: status == 200 and body["status"]["phase"] == "Suspended")


async def test_a_console_goes_on_over_a_restart_of_the_watchdog_and_begins_anew_after_its_own(
    tmp_path: Path,
) -> None:
    store = MemoryStore()
    async with rigged(store, senses=senses_for) as rig, shown_for(rig, tmp_path) as shown:
        await rig.submit(policy_of())
        await shown.until(PATH, lambda status, _: status == 200)
        port = rig.server.port
        await rig.server.close()
        rig.watchdog.stop()
        away = await shown.until(PATH, lambda status, body: status == 200 and body["stale_s"] > 1.0)
        assert away["status"]["job"] == JOB
        async with rigged(store, senses=senses_for, port=port or 0) as again:
            await again.submit(policy_of(job="research/other"))
            await shown.until("/api/v1/jobs/research/other", lambda status, _: status == 200)
            await shown.until(PATH, lambda status, body: status == 200 and body["stale_s"] < 1.5)
            shown.process.terminate()
            await shown.process.wait()
            async with shown_for(again, tmp_path) as fresh:
                await fresh.until(PATH, lambda status, _: status == 200)


async def test_a_run_says_where_its_console_is(rig: Rig, tmp_path: Path) -> None:
    directory, said = StateDirectory(tmp_path), asyncio.Queue[str]()
    directory.token_file.write_text(TOKEN)
    directory.run_file.write_text(json.dumps({"job": JOB, "job_file": "job.yaml"}))
    console = ConsoleProcess(directory, f"127.0.0.1:{rig.server.port}", said.put_nowait)
    running = asyncio.create_task(console.run())
    async with asyncio.timeout(PATIENCE_S):
        line = await said.get()
    at = directory.console_at()
    assert at is not None
    assert line == f"console: http://127.0.0.1:{at.port}/ ('holdfast console' prints it with its token)"
    asked = await asyncio.to_thread(CliRunner().invoke, holdfast, ["console", "--state-dir", str(tmp_path)])
    assert asked.stdout == f"http://127.0.0.1:{at.port}/#token={TOKEN}\n"
    async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{at.port}/") as page:
        assert page.status == 200
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await console.stop()
    assert directory.console_at() is None


async def test_a_console_of_a_watchdog_elsewhere_listens_where_it_is_told(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    port = free_port()
    where = ("--watchdog", f"127.0.0.1:{rig.server.port}", "--token-file", str(tmp_path / "token"))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "holdfast.cli", "console", *where, "--port", str(port)),
        stderr=asyncio.subprocess.DEVNULL,
    )
    (tmp_path / "at.json").write_text(json.dumps({"port": port}))
    try:
        async with aiohttp.ClientSession() as http:
            shown = Shown(process, tmp_path / "at.json", http)
            await shown.until("/healthz", lambda status, _: status == 200)
            assert await shown.get("/api/v1/jobs") == (200, {"jobs": []})
    finally:
        process.terminate()
        await process.wait()


def _is_whole(body: Any) -> bool:
    return body["world"] == 2 and len(body["nodes"]) == 2 and all(each["gpus"] for each in body["nodes"])
