"""The watchdog as a process: start, signals, sudden death, and what it says when it cannot start."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from patience import patient
from peers import JOB, LauncherPeer, bearer, join, policy_of
from silent_strangers import silent_strangers, with_few_files

from holdfast.api.event import JobSubmitted, MemberJoined, MemberLeft, WatchdogStarted
from holdfast.api.membership import Beat, WorkerExited
from holdfast.api.policy import RestartBudget
from holdfast.api.round import Seat
from holdfast.watchdog import brain
from holdfast.watchdog.journal.replay import Verdict, replay
from holdfast.watchdog.store.sqlite import SqliteStore
from holdfast.watchdog.store.store import START, Snapshot

PATIENCE_S = patient(30.0)
NEVER_S = 600.0  # for peers that do not beat, in tests that take no silence for a loss


class Installation:
    """One state folder, and the processes started on it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack
        self.http = aiohttp.ClientSession()

    @property
    def store(self) -> Path:
        return self.folder / "watchdog.db"

    @property
    def token(self) -> str:
        return (self.folder / "token").read_text().strip()

    def start(self, *arguments: str, has_few_files: bool = False) -> "subprocess.Popen[str]":
        command = [
            *(sys.executable, "-m", "holdfast.watchdog", "--log-level", "WARNING"),
            *("--store", str(self.store), "--token-file", str(self.folder / "token"), *arguments),
        ]
        process = subprocess.Popen(
            with_few_files(command) if has_few_files else command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._stack.callback(_reap, process)
        return process

    async def listening(self, process: "subprocess.Popen[str]") -> str:
        """The base address, once this process serves."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                assert process.poll() is None, process.stdout and process.stdout.read()
                try:
                    found = json.loads((self.folder / "watchdog.json").read_text())
                except FileNotFoundError:
                    found = {}
                if found.get("pid") == process.pid:
                    return f"http://{found['host']}:{found['port']}"
                await asyncio.sleep(0.01)

    async def launcher(self, base: str, member: str, **fields: Any) -> LauncherPeer:
        socket_ = await self.http.ws_connect(f"{base}/v1/member", headers=bearer(self.token))
        peer = LauncherPeer(socket_, member)
        await peer.say(join(member, **fields))
        return peer

    async def submit(self, base: str, **fields: Any) -> None:
        body = msgspec.json.encode(policy_of(**fields))
        async with self.http.post(f"{base}/v1/jobs", data=body, headers=bearer(self.token)) as response:
            assert response.status == 200, await response.text()


def _reap(process: "subprocess.Popen[str]") -> None:
    if process.poll() is None:
        process.kill()
    process.communicate(timeout=PATIENCE_S)


@pytest.fixture
async def installation(tmp_path: Path) -> AsyncIterator[Installation]:
    with ExitStack() as stack:
        made = Installation(tmp_path, stack)
        yield made
        await made.http.close()


def killed(shown: Seat, rank: int) -> WorkerExited:
    return WorkerExited(shown.number, rank, age_s=0.0, signal=9, error="Killed")


@asynccontextmanager
async def beating(*peers: LauncherPeer) -> AsyncIterator[None]:
    """Peers that are heard of all the time, however long the block takes."""

    async def beat() -> None:
        while True:
            for peer in peers:
                await peer.say(Beat())
            await asyncio.sleep(0.1)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()


async def test_killed_and_restarted_it_goes_on_where_it_was(installation: Installation) -> None:
    process = installation.start()
    base = await installation.listening(process)
    await installation.submit(base, nodes=2, restarts=RestartBudget(backoff_s=0.0), lost_after_s=NEVER_S)
    first, second = await installation.launcher(base, "m1"), await installation.launcher(base, "m2")
    broken = await first.enter()
    await second.enter()
    await second.say(killed(broken, 1))
    shown = await first.enter(broken.number)
    await second.enter(broken.number)

    process.kill()
    process.wait(PATIENCE_S)
    process = installation.start()
    base = await installation.listening(process)
    first = await installation.launcher(base, "m1", held_round=shown.number)
    second = await installation.launcher(base, "m2", held_round=shown.number)
    # The same round is shown again, nothing new was decided about it ...
    assert await first.round_after(0) == shown
    # ... and the next fault is healed, with a number never given before.
    await second.say(killed(shown, 1))
    assert (await first.round_after(shown.number)).world_size == 2

    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 0
    store = SqliteStore(installation.store)
    numbers = [line.event for line in store.tail(JOB, START) if isinstance(line.event, WatchdogStarted)]
    assert len(numbers) == 1
    outcome = replay(store, JOB, brain=brain)
    assert (outcome.verdict, outcome.compared_at) == (Verdict.EQUAL, outcome.lines)
    store.close()


async def test_its_word_about_an_xid_is_every_jobs_policy_and_a_token_of_its_own_reads_the_metrics(
    installation: Installation,
) -> None:
    scraping = installation.folder / "scraping"
    scraping.write_text("for prometheus")
    told = installation.folder / "elsewhere.json"
    flags = ("--xid", "31=Ignore", "--cordon-on", "sensors", "--state-file", str(told))
    process = installation.start(*flags, "--metrics-token-file", str(scraping))
    async with asyncio.timeout(PATIENCE_S):
        while not told.exists():  # noqa: ASYNC110 - a file of another process
            await asyncio.sleep(0.01)
    where = json.loads(told.read_text())
    assert where["pid"] == process.pid
    base = f"http://{where['host']}:{where['port']}"
    await installation.submit(base, nodes=1)
    reading = bearer(installation.token)
    async with installation.http.get(f"{base}/v1/jobs/{JOB}/journal?after=0", headers=reading) as answer:
        said = (await answer.text()).replace(" ", "")
        assert '"31":"Ignore"' in said
        assert '"cordon_on":"sensors"' in said
    async with installation.http.get(f"{base}/metrics", headers=bearer("for prometheus")) as answer:
        assert answer.status == 200
    async with installation.http.get(f"{base}/v1/jobs", headers=bearer("for prometheus")) as answer:
        assert answer.status == 401


async def test_a_member_that_does_not_come_back_after_a_restart_is_lost(installation: Installation) -> None:
    process = installation.start()
    base = await installation.listening(process)
    await installation.submit(base, nodes=2, lost_after_s=patient(0.6), heartbeat_interval_s=0.2)
    first, second = await installation.launcher(base, "m1"), await installation.launcher(base, "m2")
    async with beating(first, second):
        shown = await first.enter()
        await second.enter()
        process.kill()
    process.wait(PATIENCE_S)
    process = installation.start()
    first = await installation.launcher(await installation.listening(process), "m1", held_round=shown.number)
    healed = await first.round_after(shown.number)
    assert (healed.place, healed.members) == (0, 1)


async def test_a_watchdog_that_was_stopped_for_a_while_takes_nobody_for_dead(installation: Installation) -> None:
    process = installation.start()
    base = await installation.listening(process)
    await installation.submit(base, nodes=2, lost_after_s=patient(0.6), heartbeat_interval_s=0.2)
    peers = [await installation.launcher(base, name) for name in ("m1", "m2")]
    async with beating(*peers):
        for peer in peers:
            await peer.enter()
        process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(patient(1.5))
        process.send_signal(signal.SIGCONT)
        await asyncio.sleep(patient(1.0))
    async with installation.http.get(
        f"{base}/v1/jobs/{JOB}/status", headers=bearer(installation.token)
    ) as response:
        told = await response.json()
    assert (told["incidents_total"], told["members"]["ready"]) == (0, 2)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_cleanly_and_takes_the_address_back(
    installation: Installation, number: signal.Signals
) -> None:
    process = installation.start()
    base = await installation.listening(process)
    await installation.submit(base, nodes=1)
    launcher = await installation.launcher(base, "m1")
    await launcher.enter()
    process.send_signal(number)
    assert await launcher.ended() == (1001, "the watchdog is shutting down")
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, output) == (0, "")
    assert sorted(path.name for path in installation.folder.iterdir()) == [
        "token",
        "watchdog.db",
        "watchdog.db.life",
    ]


async def test_the_token_is_made_for_its_owner_only(installation: Installation) -> None:
    await installation.listening(installation.start())
    assert (installation.folder / "token").stat().st_mode & 0o777 == 0o600
    assert len(installation.token) >= 32


async def test_a_second_watchdog_on_the_store_ends_the_first_at_its_next_decision(
    installation: Installation,
) -> None:
    first = installation.start()
    base = await installation.listening(first)
    # A loss that is found sooner, by silence, would be the first one's own: it still has the store then.
    await installation.submit(base, nodes=1, lost_after_s=NEVER_S)
    launcher = await installation.launcher(base, "m1")
    await launcher.enter()
    second = installation.start()
    await installation.listening(second)
    await launcher.socket.close()
    output, _ = first.communicate(timeout=PATIENCE_S)
    assert first.returncode == 4
    assert "another watchdog has taken over this store" in output
    # The address belongs to the second one now and stays.
    assert json.loads((installation.folder / "watchdog.json").read_text())["pid"] == second.pid


class TestCannotStart:
    @pytest.fixture
    def taken_port(self) -> Iterator[int]:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            yield taken.getsockname()[1]

    def ended(self, process: "subprocess.Popen[str]") -> str:
        output, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 3, output
        assert output.count("\n") == 1, output
        return output

    async def test_on_a_taken_port(self, installation: Installation, taken_port: int) -> None:
        says = self.ended(installation.start("--listen", f"127.0.0.1:{taken_port}"))
        assert f"port {taken_port} on 127.0.0.1 is taken" in says

    @pytest.mark.parametrize("listen", ["0.0.0.0:7000", "example.com:1", "127.0.0.1", "127.0.0.1:70000"])
    async def test_on_an_address_it_must_not_use(self, installation: Installation, listen: str) -> None:
        assert "--listen" in self.ended(installation.start("--listen", listen))

    async def test_on_a_store_that_is_no_store(self, installation: Installation) -> None:
        installation.store.write_bytes(b"something else entirely" * 100)
        assert "is not a readable store" in self.ended(installation.start())

    async def test_with_a_token_others_can_read(self, installation: Installation) -> None:
        path = installation.folder / "token"
        path.write_text("a-token-that-is-long-enough\n")
        os.chmod(path, 0o644)
        assert "chmod 600" in self.ended(installation.start())

    async def test_in_a_folder_that_is_not_there(self, tmp_path: Path, installation: Installation) -> None:
        installation.folder = tmp_path / "nowhere"
        assert "nowhere" in self.ended(installation.start())


async def test_strangers_that_say_nothing_close_its_port_to_nobody(installation: Installation) -> None:
    process = installation.start(has_few_files=True)
    base = await installation.listening(process)
    await installation.submit(base)
    peer = await installation.launcher(base, "m1")
    with silent_strangers(int(base.rpartition(":")[2])) as strangers:
        assert (await installation.http.get(f"{base}/livez")).status == 200
        page = await installation.http.get(f"{base}/metrics", headers=bearer(installation.token))
        assert "holdfast_watchdog_dropped_strangers_total 19" in await page.text()
        late = await installation.launcher(base, "m2")
        for each in (peer, late):
            await each.say(Beat())
        # The last of them are still there: they have ten seconds to say something.
        began = asyncio.get_running_loop().time()
        assert await asyncio.to_thread(strangers[-1].recv, 1) == b""
        assert asyncio.get_running_loop().time() - began < 15.0
    assert not peer.socket.closed
    process.terminate()
    said = process.communicate(timeout=PATIENCE_S)[0]
    assert said.count("connections of strangers give way") == 1


async def test_a_full_journal_behind_a_torn_snapshot_is_applied_at_the_start(installation: Installation) -> None:
    """How long that takes, `bench/restart.py` measures: here it is that a process does it, and goes on."""
    lines = 10_000  # as many as a journal keeps
    joined = MemberJoined("m1", "node-m1", "b", "10.0.0.1", 8, (7000, 7001), warm=True)
    coming_and_going = [joined, MemberLeft("m1", "rescheduled")] * (lines // 2)
    store = SqliteStore(installation.store)
    fence = store.claim()
    events = (JobSubmitted(policy_of(nodes=2)), *coming_and_going[: lines - 2], joined)
    assert len(store.append(JOB, events, at=1.0, after=START, fence=fence)) == lines
    store.save(JOB, Snapshot(lines, 1.0, b"\xc1"), fence=fence)
    store.close()
    process = installation.start()
    base = await installation.listening(process)
    async with installation.http.get(f"{base}/v1/jobs/{JOB}/status", headers=bearer(installation.token)) as answer:
        said = await answer.json()
    assert said["members"]["wanted"] == 2  # from the first of all lines
    await installation.launcher(base, "m2")
    process.terminate()
    assert "a snapshot is not readable, going back further" in process.communicate(timeout=PATIENCE_S)[0]
    assert process.returncode == 0
    store = SqliteStore(installation.store)
    assert store.last(JOB) > lines
    store.close()
