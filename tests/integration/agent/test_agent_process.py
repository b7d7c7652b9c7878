"""The agent as a process: real records, a real watchdog connection, real signals."""

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest
from fake_ingest import TOKEN, FakeWatchdog
from patience import patient
from silent_strangers import silent_strangers, with_few_files

from holdfast.agent.sensors.simulated_gpu import Fault, gpu_uuid, inject
from holdfast.api.control import record_file_name
from holdfast.api.rankrecord import (
    SEQUENCE,
    SIZE,
    STEP_OFFSET,
    STEP_SEQUENCE_OFFSET,
    Phase,
    StepZone,
    pack_header,
    pack_step,
)
from holdfast.api.telemetry import Pace, ProcessState, XidRaised

AGENT = (sys.executable, "-m", "holdfast.agent")
RARELY = Pace(interval_s=60.0)  # what arrives under it was sent early


@pytest.fixture
async def watchdog() -> AsyncIterator[FakeWatchdog]:
    watchdog = FakeWatchdog()
    await watchdog.start()
    yield watchdog
    await watchdog.stop()


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    return path


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def command(watchdog: FakeWatchdog, run_dir: Path, token_file: Path) -> tuple[str, ...]:
    flags = f"--node node-1 --job ns/job --run-dir {run_dir} --token-file {token_file} --simulated-gpus 2"
    return (*AGENT, *flags.split(), "--watchdog", f"127.0.0.1:{watchdog.port}")


@pytest.fixture
def agent(command: tuple[str, ...]) -> Iterator[subprocess.Popen[str]]:
    with running(command) as process:
        yield process


def publish(run_dir: Path, *, pid: int, step: int) -> None:
    """A record as a trainer leaves it."""
    zone = StepZone(1, 0, 0, 1, pid, step, Phase.DATA, 1, 1, -1, 2.0, 1.0, 8, -1)
    record = bytearray(SIZE)
    record[: len(pack_header())] = pack_header()
    SEQUENCE.pack_into(record, STEP_SEQUENCE_OFFSET, 2)
    packed = pack_step(zone)
    record[STEP_OFFSET : STEP_OFFSET + len(packed)] = packed
    (run_dir / "fresh").write_bytes(record)
    (run_dir / "fresh").rename(run_dir / record_file_name(0))


@contextmanager
def running(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


async def ended(pid: int) -> bool:
    """Waits until the process has ended, whoever its parent is now."""
    file = os.pidfd_open(pid)
    readable, _, _ = await asyncio.to_thread(select.select, [file], [], [], 20)
    os.close(file)
    return bool(readable)


async def test_it_says_who_it_is_reports_its_node_and_follows_faults_early(
    watchdog: FakeWatchdog, agent: subprocess.Popen[str], run_dir: Path
) -> None:
    connection = await watchdog.connection()
    assert (connection.hello.node, connection.hello.job) == ("node-1", "ns/job")
    first = await connection.report()
    assert (first.sequence, first.boot) == (1, connection.hello.boot)
    assert [gpu.uuid for gpu in first.gpus] == [gpu_uuid("node-1", 0), gpu_uuid("node-1", 1)]

    await connection.say(RARELY)
    await connection.socket.send_bytes(b"\xff\xff")  # garbage, and the wrong kind of frame, change nothing
    await connection.socket.send_str("hello")
    publish(run_dir, pid=agent.pid, step=7)
    assert (await connection.report(lambda report: report.ranks)).ranks[0].step == 7

    with running((sys.executable, "-S", "-c", "input()")) as worker:
        publish(run_dir, pid=worker.pid, step=8)
        worker.send_signal(signal.SIGSTOP)
        stopped = await connection.report(lambda report: report.ranks[0].process is ProcessState.STOPPED)
        worker.kill()
        gone = await connection.report(lambda report: report.ranks[0].process is ProcessState.GONE)
    assert stopped.sequence < gone.sequence

    inject(str(run_dir), Fault(gpu=1, xid=79, text="fell off"))
    (event,) = (await connection.report(lambda report: report.events)).events
    assert isinstance(event, XidRaised)
    assert (event.gpu, event.xid, event.text) == (gpu_uuid("node-1", 1), 79, "fell off")


async def test_an_event_outlives_the_watchdog_and_keeps_its_number(
    watchdog: FakeWatchdog, agent: subprocess.Popen[str], run_dir: Path
) -> None:
    connection = await watchdog.connection()
    watchdog.takes = False
    inject(str(run_dir), Fault(gpu=0, xid=48))
    sent = await connection.report(lambda report: report.events)
    await watchdog.stop()
    inject(str(run_dir), Fault(gpu=0, xid=63))
    watchdog.takes = True
    await watchdog.start()
    connection = await watchdog.connection()
    again = await connection.report()
    fresh = await connection.report(lambda report: report.events)
    assert again.sequence == sent.sequence
    assert again.events[0].age_s > sent.events[0].age_s
    assert [event.xid for event in fresh.events if isinstance(event, XidRaised)] == [63]
    assert connection.hello.boot == fresh.boot
    assert agent.poll() is None


async def readiness(run_dir: Path) -> tuple[int, object]:
    """What a probe that shows no token is answered."""
    url = f"http://127.0.0.1:{json.loads((run_dir / 'agent.json').read_text())['port']}/readyz"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status, await answer.json()


async def test_a_refused_token_is_read_again_until_it_is_right(
    watchdog: FakeWatchdog, token_file: Path, command: tuple[str, ...], run_dir: Path
) -> None:
    token_file.write_text("outdated")
    with running(command) as agent:
        async with asyncio.timeout(patient(20)):
            await watchdog.refused.wait()
        assert await readiness(run_dir) == (503, {"error": "1 of 1 connections to the watchdog are away"})
        token_file.write_text(TOKEN)
        await (await watchdog.connection()).report()
        assert await readiness(run_dir) == (200, {"status": "ok"})
        agent.terminate()
        _, said = await asyncio.to_thread(agent.communicate, timeout=patient(20))
    assert agent.returncode == 0
    assert said.count("refused with HTTP status 401") == 1


async def test_the_watchdogs_reason_for_closing_is_logged(
    watchdog: FakeWatchdog, agent: subprocess.Popen[str]
) -> None:
    for _ in range(3):
        await (await watchdog.connection()).socket.close(code=1008, message=b"no such job")
    await watchdog.connection()
    agent.terminate()
    _, said = await asyncio.to_thread(agent.communicate, timeout=patient(20))
    assert "closed by the watchdog with code 1008: no such job" in said


async def test_it_serves_metrics_where_it_says_and_ends_cleanly_on_sigterm(
    watchdog: FakeWatchdog, agent: subprocess.Popen[str], run_dir: Path
) -> None:
    await watchdog.connection()
    where = json.loads((run_dir / "agent.json").read_text())
    assert (where["node"], where["host"], where["pid"]) == ("node-1", "127.0.0.1", agent.pid)
    url = f"http://127.0.0.1:{where['port']}/metrics"
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, headers={"Authorization": f"Bearer {TOKEN}"}) as answer,
    ):
        assert "DCGM_FI_DEV_GPU_TEMP{" in await answer.text()
    agent.terminate()
    _, said = await asyncio.to_thread(agent.communicate, timeout=patient(20))
    assert agent.returncode == 0
    assert "Traceback" not in said


async def test_nothing_is_left_when_its_starter_is_killed(
    watchdog: FakeWatchdog, command: tuple[str, ...]
) -> None:
    script = "import subprocess, sys; a = subprocess.Popen(sys.argv[1:]); print(a.pid, flush=True); a.wait()"
    arguments = (sys.executable, "-c", script, *command, "--die-with-parent")
    with running(arguments) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        await watchdog.connection()
        starter.kill()
        assert await ended(pid)


def test_a_wrong_command_line_ends_in_one_sentence(tmp_path: Path) -> None:
    flags = f"--node n --job ns/job --run-dir {tmp_path} --watchdog nowhere --token-file {tmp_path / 'token'}"
    result = subprocess.run((*AGENT, *flags.split()), capture_output=True, text=True, timeout=patient(30))
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "--token-file" in result.stderr


async def test_a_taken_port_ends_in_one_sentence(watchdog: FakeWatchdog, command: tuple[str, ...]) -> None:
    arguments = (*command, "--listen", f"127.0.0.1:{watchdog.port}")
    result = await asyncio.to_thread(
        subprocess.run, arguments, capture_output=True, text=True, timeout=patient(30)
    )
    assert result.returncode == 3
    assert result.stderr.count("\n") == 1
    assert "Cannot serve metrics" in result.stderr


def test_it_imports_nothing_heavy() -> None:
    script = "import sys, holdfast.agent.program; print(*sys.modules)"
    loaded = subprocess.run(
        (sys.executable, "-c", script), capture_output=True, text=True, timeout=patient(30)
    ).stdout
    assert not {"torch", "numpy", "pydantic", "kubernetes"} & set(loaded.split())


async def test_strangers_that_say_nothing_close_its_port_to_nobody(
    watchdog: FakeWatchdog, command: tuple[str, ...], run_dir: Path
) -> None:
    with running(with_few_files(command)):
        await (await watchdog.connection()).report()
        port = json.loads((run_dir / "agent.json").read_text())["port"]
        async with aiohttp.ClientSession() as http:
            with silent_strangers(port):
                assert (await http.get(f"http://127.0.0.1:{port}/readyz")).status == 200
