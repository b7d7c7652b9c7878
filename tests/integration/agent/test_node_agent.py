"""The agent of a whole node: a made-up kubelet's pods directory, real records, real processes."""

import asyncio
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import psutil
import pytest
from fake_ingest import TOKEN, Connection, FakeWatchdog
from patience import patient

from holdfast.agent.memberfile import Member, own_pid_namespace, write_member
from holdfast.agent.sensors.simulated_gpu import Fault, inject
from holdfast.api.telemetry import NodeReport, ProcessState, XidRaised

RUNNING = ProcessState.RUNNING
CGROUPS = Path("/sys/fs/cgroup")
EMPTY_S_MAX = patient(10.0)
AGENT = (sys.executable, "-m", "holdfast.agent", "--node", "node-1")
TRAINER = """
import os, sys, time
from pathlib import Path
from holdfast.api.control import Assignment
from holdfast.api.round import Endpoint, Restore
from holdfast.trainer.record import open_record
folder, rank = Path(sys.argv[1]), int(sys.argv[2])
record = open_record(folder, 0)
record.begin(Assignment("j", 1, rank, 0, 1, 1, Endpoint("", 0), Restore(), "test"))
record.step(41, 2.5, 1.0, 8)
print(os.getpid(), os.stat("/proc/self/ns/pid").st_ino, flush=True)
time.sleep(600)
"""


@pytest.fixture
async def watchdog() -> AsyncIterator[FakeWatchdog]:
    watchdog = FakeWatchdog()
    await watchdog.start()
    yield watchdog
    await watchdog.stop()


@pytest.fixture
def pods(tmp_path: Path) -> Path:
    path = tmp_path / "pods"
    path.mkdir()
    (tmp_path / "logs").mkdir()
    return path


@pytest.fixture
def flags(watchdog: FakeWatchdog, pods: Path, tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "metrics").write_text("for-prometheus")
    words = f"--kubelet-pods {pods} --kubelet-pod-logs {tmp_path}/logs --token-file {tmp_path}/token"
    return (
        *AGENT,
        *words.split(),
        "--metrics-token-file",
        f"{tmp_path}/metrics",
        "--watchdog",
        f"127.0.0.1:{watchdog.port}",
    )


@contextmanager
def running(*command: str) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


def pod(pods: Path, uid: str) -> Path:
    run_dir = pods / uid / "volumes" / "kubernetes.io~empty-dir" / "holdfast-run"
    run_dir.mkdir(parents=True)
    return run_dir


def leave(run_dir: Path, member: Member) -> None:
    """The launcher's file, and the kubelet's folder of its pod's logs."""
    pods, uid = run_dir.parents[3], run_dir.parents[2].name
    name = f"{member.job.partition('/')[0]}_{member.member}_{uid}"
    (pods.parent / "logs" / name).mkdir(exist_ok=True)
    write_member(run_dir, member)


@contextmanager
def control_group(uid: str) -> Iterator[Path]:
    """One as the kubelet makes for a pod, of whichever version this machine has."""
    pids = CGROUPS / "pids"
    folder = (pids if pids.is_dir() else CGROUPS) / f"holdfast-agent-{secrets.token_hex(4)}" / f"pod{uid}"
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        deadline = time.monotonic() + EMPTY_S_MAX
        while (folder / "cgroup.procs").read_text():  # a killed process leaves it a moment after it is gone
            assert time.monotonic() < deadline
            time.sleep(0.01)
        folder.rmdir()
        folder.parent.rmdir()


@contextmanager
def training(run_dir: Path, job: str, rank: int, *prefix: str) -> Iterator["subprocess.Popen[str]"]:
    """A process in its pod's control group that publishes `rank`'s record, and its launcher's member file."""
    trainer = (*prefix, sys.executable, "-c", TRAINER, str(run_dir), str(rank))
    with control_group(run_dir.parents[2].name) as group:
        entering = ("sh", "-c", 'echo $$ > "$0" && exec "$@"', str(group / "cgroup.procs"))
        with running(*entering, *trainer) as process:
            assert process.stdout is not None
            said = process.stdout.readline().split()
            assert said, f"the trainer did not start: {process.communicate()[1]}"
            leave(run_dir, Member(job, f"pod-{rank}", "node-1", "b", int(said[1])))
            yield process


async def by_job(watchdog: FakeWatchdog, count: int) -> dict[str, Connection]:
    return {each.hello.job: each for each in [await watchdog.connection() for _ in range(count)]}


def has_ranks(report: NodeReport) -> bool:
    return bool(report.ranks)


@pytest.mark.needs("cgroups")
async def test_each_job_on_the_node_gets_its_own_ranks_over_its_own_connection(
    watchdog: FakeWatchdog, pods: Path, flags: tuple[str, ...]
) -> None:
    volumes = [pod(pods, uid) for uid in ("1-1", "2-2", "3-3")]
    with (
        training(volumes[0], "ns/a", 0),
        training(volumes[1], "ns/a", 1),
        training(volumes[2], "ns/b", 5),
        running(*flags),
    ):
        jobs = await by_job(watchdog, 2)
        # Both pods of the job: the second may have come a look later.
        a = await jobs["ns/a"].report(lambda report: [each.process for each in report.ranks] == [RUNNING] * 2)
        b = await jobs["ns/b"].report(has_ranks)
    assert sorted((rank.rank, rank.step) for rank in a.ranks) == [(0, 41), (1, 41)]
    assert [rank.rank for rank in b.ranks] == [5]
    assert {a.node, b.node} == {"node-1"}
    assert a.boot != b.boot


@pytest.mark.needs("cgroups")
async def test_a_pod_that_comes_later_is_found_and_one_that_goes_is_not_missed(
    watchdog: FakeWatchdog, pods: Path, flags: tuple[str, ...]
) -> None:
    with running(*flags) as agent:
        with training(pod(pods, "1-1"), "ns/a", 0):
            connection = await watchdog.connection()
            await connection.report(has_ranks)
        await connection.report(lambda report: report.ranks[0].process is ProcessState.GONE)
        shutil.rmtree(pods / "1-1")
        await connection.report(lambda report: not report.ranks)
        assert agent.poll() is None


async def test_a_faulty_gpu_is_every_jobs_news(
    watchdog: FakeWatchdog, pods: Path, flags: tuple[str, ...], tmp_path: Path
) -> None:
    for uid, job in (("1-1", "ns/a"), ("2-2", "ns/b")):
        leave(pod(pods, uid), Member(job, "m", "node-1", "b", own_pid_namespace()))
    own = tmp_path / "own"
    with running(*flags, "--simulated-gpus", "2", "--run-dir", str(own)):
        jobs = await by_job(watchdog, 2)
        inject(str(own), Fault(gpu=1, xid=79))
        for connection in jobs.values():
            (event,) = (await connection.report(lambda report: report.events)).events
            assert isinstance(event, XidRaised)
            assert event.xid == 79


@pytest.mark.needs("cgroups", "namespaces")
async def test_a_process_in_a_pid_namespace_of_its_own_is_found_followed_and_seen_to_end(
    watchdog: FakeWatchdog, pods: Path, flags: tuple[str, ...]
) -> None:
    run_dir = pod(pods, "1-1")
    apart = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    with training(run_dir, "ns/a", 0, *apart) as process, running(*flags):
        connection = await watchdog.connection()
        report = await connection.report(lambda report: report.ranks and report.ranks[0].process is RUNNING)
        assert report.ranks[0].pid == 1
        (worker,) = psutil.Process(process.pid).children()
        worker.suspend()
        await connection.report(lambda report: report.ranks[0].process is ProcessState.STOPPED)
        worker.kill()
        await connection.report(lambda report: report.ranks[0].process is ProcessState.GONE)


@pytest.mark.needs("cgroups")
async def test_a_process_that_cannot_be_found_is_unknown(
    watchdog: FakeWatchdog, pods: Path, flags: tuple[str, ...]
) -> None:
    run_dir = pod(pods, "1-1")
    with training(run_dir, "ns/a", 0):
        leave(run_dir, Member("ns/a", "pod-0", "node-1", "b", 1))  # of a namespace this node does not have
        with running(*flags):
            report = await (await watchdog.connection()).report(has_ranks)
    assert [rank.process for rank in report.ranks] == [ProcessState.UNKNOWN]


async def test_a_node_without_jobs_serves_its_metrics_and_nothing_is_written_below_the_pods(
    watchdog: FakeWatchdog, pods: Path, flags: tuple[str, ...], tmp_path: Path
) -> None:
    (pods / "1-1").mkdir()
    own = tmp_path / "own"
    with running(*flags, "--simulated-gpus", "1", "--run-dir", str(own), "--listen", "0.0.0.0:0") as agent:
        url = await metrics_url(agent)
        async with aiohttp.ClientSession() as session:
            for token, status in ((TOKEN, 401), ("for-prometheus", 200)):
                async with session.get(url, headers={"Authorization": f"Bearer {token}"}) as answer:
                    assert answer.status == status
                    text = await answer.text()
        assert "DCGM_FI_DEV_GPU_TEMP{" in text
    assert [path.name for path in pods.rglob("*")] == ["1-1"]


async def metrics_url(agent: "subprocess.Popen[str]") -> str:
    """Where the agent says, in its log, that it serves metrics."""
    assert agent.stderr is not None
    async with asyncio.timeout(patient(20)):
        while True:
            line = await asyncio.to_thread(agent.stderr.readline)
            assert line, "the agent ended without saying where it serves metrics"
            if "metrics served: at=" in line:
                port = line.rsplit(":", 1)[1].strip()
                return f"http://127.0.0.1:{port}/metrics"


def test_a_mount_that_is_missing_ends_in_one_sentence(flags: tuple[str, ...], pods: Path) -> None:
    pods.rmdir()
    result = subprocess.run(flags, capture_output=True, text=True, timeout=patient(30))
    assert result.returncode == 3
    assert f"The pods directory {pods} cannot be listed: No such file or directory." in result.stderr
    assert "Traceback" not in result.stderr


async def test_two_hundred_pods_of_others_cost_little_beside_the_agent_itself(
    watchdog: FakeWatchdog, pods: Path, flags: tuple[str, ...]
) -> None:
    for number in range(2):
        leave(pod(pods, f"{number}-1"), Member("ns/a", f"m{number}", "node-1", "b", own_pid_namespace()))
    with running(*flags) as agent:
        connection = await watchdog.connection()
        for _ in range(2):
            await connection.report()
        without = await core_share(agent, connection, reports=2)
        for number in range(200):
            (pods / f"{number}-0" / "volumes" / "kubernetes.io~empty-dir" / "scratch").mkdir(parents=True)
        await connection.report()
        share = await core_share(agent, connection, reports=2)
    print(f"core share {share:.4f}, without them {without:.4f}")
    # How much a core does is the machine's. A process's clock ticks in hundredths: no share is known better.
    assert share < 3.0 * max(without, 0.01)


async def core_share(agent: "subprocess.Popen[str]", connection: Connection, *, reports: int) -> float:
    """How much of a core the agent takes from one report to so many later."""
    process = psutil.Process(agent.pid)
    before, began = process.cpu_times(), time.monotonic()
    for _ in range(reports):
        await connection.report()
    after = process.cpu_times()
    return (after.user + after.system - before.user - before.system) / (time.monotonic() - began)
