"""One agent process on a node whose every part fails: what is scraped of it while it is well, sick and mended.

The driver's library, the network ports, the kernel's log and its count of memory are files of the test; disks are
real file systems. Everything from there on is the agent.
"""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pynvml
import pytest
from aiohttp import web
from fake_ingest import TOKEN, FakeWatchdog
from fake_nvml import FakeNvml
from http_fake import serving
from ib_tree import IbTree
from patience import patient

from holdfast.agent.metrics.table import AGENT_METRICS
from holdfast.api.condition import ConditionKind

SCRAPE_TOKEN = "for-prometheus"
GPUS = 4
# Metrics that only the run of a job has: its ranks, and a notice that the machine is taken away.
OF_A_JOB = re.compile(r"holdfast_(rank|preemption)_")
LATER = {
    ConditionKind.CLOCK_UNSYNCHRONISED,  # after ten minutes of a clock that nobody sets
    ConditionKind.LINK_DEGRADED,  # after a minute
}
MENDED = {ConditionKind.MEMORY_LOW, ConditionKind.DISK_FULL, ConditionKind.DISK_READ_ONLY}
# The fake places, seen by the agent's process alone.
APART = """
mount -t tmpfs tmpfs /sys/class && mkdir /sys/class/infiniband &&
mount --bind "$0/infiniband" /sys/class/infiniband && mount --bind "$0/meminfo" /proc/meminfo && exec "$@"
"""


class Node:
    """A node of four GPUs, four ports and two disks, and the agent on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.gpus = FakeNvml(folder, gpus=GPUS)
        self.ports = IbTree(folder)
        self.log = folder / "kern.log"
        self.log.write_text("Nov 22 18:00:00 n kernel: history\n")
        self.memory = folder / "meminfo"
        self.memory.write_text(Path("/proc/meminfo").read_text())
        for gpu in self.gpus.gpus:
            for field in (
                pynvml.NVML_FI_DEV_RETIRED_SBE,
                pynvml.NVML_FI_DEV_RETIRED_DBE,
                pynvml.NVML_FI_DEV_RETIRED_PENDING,
            ):
                gpu.field(field, 0)

    def command(self, watchdog: FakeWatchdog, *more: str) -> list[str]:
        (self.folder / "token").write_text(TOKEN)
        (self.folder / "metrics").write_text(SCRAPE_TOKEN)
        flags = (
            f"--node n --job ns/job --run-dir {self.folder / 'run'} --token-file {self.folder / 'token'} "
            f"--metrics-token-file {self.folder / 'metrics'} --listen 127.0.0.1:0 --interval 200ms "
            f"--nvml auto --infiniband auto --node-checks auto --preemption none --kernel-log {self.log} "
            f"--disk {self.disk('full')} --disk {self.disk('locked')} "
            f"--watchdog 127.0.0.1:{watchdog.port}"
        )
        apart = ("unshare", "--mount", "sh", "-c", APART, str(self.folder))
        return [*apart, sys.executable, "-m", "holdfast.agent", *flags.split(), *more]

    def disk(self, name: str) -> Path:
        return self.folder / name

    def says(self, *messages: str) -> None:
        with self.log.open("a") as log:
            log.writelines(f"Nov 22 18:00:01 n kernel: {each}\n" for each in messages)

    def left_of_memory(self, kib: int) -> None:
        lines = self.memory.read_text()
        self.memory.write_text(re.sub(r"MemAvailable:\s+\d+", f"MemAvailable: {kib}", lines))

    def fall_sick(self) -> None:
        first, second, third, lost = self.gpus.gpus
        first.set(ecc_uncorrected=1, ecc_corrected=90_000, remap_pending=1, remap_failed=1, pcie_replays=4000)
        first.field(pynvml.NVML_FI_DEV_RETIRED_PENDING, 1)
        first.field(pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER, 4000)
        first.link(7, replays=5000)
        second.field(pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, 1)
        second.event(pynvml.nvmlEventTypeGpuRecoveryAction)
        second.set(throttle=0x80)
        second.xid(94)
        third.set(pcie_width=8)
        third.link(7, active=False)
        lost.lose()
        self.ports.down("mlx5_0")
        self.ports.port("mlx5_1", "counters/symbol_error", "5000")
        self.says(
            "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 24007, Fatal, Link 30 sourcetrack timeout error",
            "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0",
            "pcieport 0000:00:01.1: AER: Uncorrected (Fatal) error received: 0000:c4:00.0",
            "Out of memory: Killed process 4321 (python) total-vm:1kB, anon-rss:1kB",
            *(f"mlx5_core 0000:5c:00.0 ens5f0np0: Link {state}" for state in ("down", "up", "down", "up")),
        )
        self.left_of_memory(1024)
        (self.disk("full") / "filler").write_bytes(bytes(1 << 16))
        subprocess.run(["mount", "-o", "remount,ro", self.disk("locked")], check=True, timeout=patient(10))

    def recover(self) -> None:
        """What a repair ends at once; the others stay raised until the driver or the node was started anew."""
        self.left_of_memory(1 << 24)
        (self.disk("full") / "filler").unlink()
        subprocess.run(["mount", "-o", "remount,rw", self.disk("locked")], check=True, timeout=patient(10))


@pytest.fixture
async def watchdog() -> AsyncIterator[FakeWatchdog]:
    watchdog = FakeWatchdog()
    await watchdog.start()
    yield watchdog
    await watchdog.stop()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    mounted: list[Path] = []
    try:
        for name in ("full", "locked"):
            node.disk(name).mkdir()
            mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", node.disk(name)]
            subprocess.run(mount, check=True, timeout=patient(10))
            mounted.append(node.disk(name))
        yield node
    finally:
        for each in mounted:
            subprocess.run(["umount", each], check=True, timeout=patient(10))


class Scraper:
    """Reads the agent's metrics, and keeps the name of each that had a sample."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url
        self.seen: set[str] = set()
        self.text = ""

    async def conditions(self) -> set[str]:
        headers = {"Authorization": f"Bearer {SCRAPE_TOKEN}"}
        async with self._session.get(self._url, headers=headers) as answer:
            assert answer.status == 200
            self.text = await answer.text()
        self.seen |= set(re.findall(r"^(\w+?)(?:_count|_sum)?[{ ]", self.text, re.MULTILINE))
        return set(re.findall(r'^holdfast_condition\{kind="(\w+)".*\} 1', self.text, re.MULTILINE))

    async def until(self, holds: Callable[[set[str]], bool]) -> set[str]:
        async with asyncio.timeout(patient(60)):
            while not holds(found := await self.conditions()):  # noqa: ASYNC110 - it asks over HTTP
                await asyncio.sleep(0.2)
        return found


@asynccontextmanager
async def agent(node: Node, watchdog: FakeWatchdog, *more: str) -> AsyncIterator[Scraper]:
    """The agent, once its line to the watchdog stands; what it serves is read by the scraper."""
    process = await asyncio.create_subprocess_exec(*node.command(watchdog, *more), env=node.gpus.environment())
    try:
        connection = await watchdog.connection()
        await connection.report(lambda report: len(report.gpus) >= GPUS)
        where = json.loads((node.folder / "run" / "agent.json").read_text())
        async with aiohttp.ClientSession() as session:
            yield Scraper(session, f"http://127.0.0.1:{where['port']}/metrics")
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@pytest.mark.needs("namespaces")
@pytest.mark.timeout(600)
async def test_what_fails_on_a_node_is_scraped_and_every_metric_of_a_node_is_there(
    node: Node, watchdog: FakeWatchdog
) -> None:
    async with agent(node, watchdog) as scraper:
        # The first look at a port and a disk says what is well.
        await scraper.until(lambda _: {"holdfast_port_up", "holdfast_node_disk_writable"} <= scraper.seen)
        assert await scraper.conditions() <= {ConditionKind.CLOCK_UNSYNCHRONISED}
        node.fall_sick()
        await scraper.until(lambda raised: raised >= {each.value for each in ConditionKind if each not in LATER})
        node.recover()
        await scraper.until(lambda raised: not raised & MENDED)
    missing = {each.name for each in AGENT_METRICS} - scraper.seen
    assert {name for name in missing if not OF_A_JOB.match(name)} == set()


@pytest.mark.needs("namespaces")
async def test_a_gpu_is_known_from_an_exporter_beside_the_agent_which_then_does_not_repeat_its_metrics(
    node: Node, watchdog: FakeWatchdog
) -> None:
    async def exported(_: web.Request) -> web.StreamResponse:
        return web.Response(text='DCGM_FI_DEV_GPU_TEMP{gpu="9",UUID="GPU-9",Hostname="n"} 61\n')

    async with serving(exported) as url, agent(node, watchdog, "--dcgm-exporter", f"{url}/metrics") as scraper:
        await scraper.until(lambda _: 'UUID="GPU-9"' in scraper.text)
    assert not [name for name in scraper.seen if name.startswith("DCGM_")]
