"""What the agent costs its node: memory and CPU at 8 ranks and 8 GPUs, ten looks and one report a second.

    python bench/agent.py [--runs 5] [--seconds 20] [--only driver,simulated]

Each run starts a fresh agent against a watchdog that takes every report. Eight live processes stand for the
ranks; their records move as in training: a step every 0.2 s, three phases a step, a pulse every 0.1 s. Metrics
are scraped every five seconds, as quickly as anybody does.

With `driver` the agent has every sensor that the machine lets it have, and asks a driver through NVIDIA's own
bindings; a library that answers for eight healthy GPUs of 18 NVLinks stands for the driver. With `simulated` it
has the GPUs of the embedded mode and nothing else.
"""

import argparse
import asyncio
import contextlib
import json
import mmap
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

import aiohttp
import msgspec
from aiohttp import web
from figure import Figure, measured, publish, unmeasured
from meter import MEGABYTE, cpu_s

from holdfast.api import rankrecord
from holdfast.api.control import record_file_name
from holdfast.api.rankrecord import Phase, StepZone
from holdfast.api.telemetry import AgentHello, FromAgent, Pace, ReportTaken

RANKS: Final = 8
GPUS: Final = 8
TOKEN: Final = "bench"
SETTLE_S: Final = 3.0  # imports and the first connection are paid once, not every second
SCRAPE_EVERY_S: Final = 5.0
SERVERS: Final = Path(__file__).parents[1] / "tests" / "servers"


class Gpus(StrEnum):
    """Where the agent has its GPUs from."""

    DRIVER = "driver"
    SIMULATED = "simulated"


@dataclass(frozen=True, slots=True)
class Machine:
    """What the agent is started with: flags, and its environment."""

    flags: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Cost:
    """What one run measured."""

    resident_mb: float
    proportional_mb: float
    core_share: float
    reports_per_s: float
    scrapes: "list[Scrape]" = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Scrape:
    """One scrape: seconds until all of it was there, and how much that was."""

    took_s: float
    size_bytes: int
    series: int


class Rank:
    """A live process and the record it would publish."""

    def __init__(self, run_dir: Path, local_rank: int) -> None:
        self.process = subprocess.Popen(("sleep", "3600"))
        path = run_dir / record_file_name(local_rank)
        path.write_bytes(rankrecord.pack_header() + bytes(rankrecord.SIZE - rankrecord.HEADER.size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), rankrecord.SIZE)
        self._rank = local_rank
        self._ticks = 0

    def tick(self) -> None:
        """A twentieth of a second of training went by."""
        self._ticks += 1
        now_ns = time.monotonic_ns()
        step, part = divmod(self._ticks, 4)
        phase = (Phase.DATA, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)[part]
        zone = StepZone(
            *(1, self._rank, self._rank, RANKS, self.process.pid, step, phase, now_ns, now_ns, 200_000_000),
            *(2.5, 1.0, 4096, step),
        )
        self._write(rankrecord.STEP_SEQUENCE_OFFSET, rankrecord.STEP_OFFSET, rankrecord.pack_step(zone))
        if self._ticks % 2:
            pulse = rankrecord.PULSE.pack(now_ns, self._ticks)
            self._write(rankrecord.PULSE_SEQUENCE_OFFSET, rankrecord.PULSE_OFFSET, pulse)

    def _write(self, lock: int, offset: int, zone: bytes) -> None:
        (sequence,) = rankrecord.SEQUENCE.unpack_from(self._map, lock)
        rankrecord.SEQUENCE.pack_into(self._map, lock, sequence + 1)
        self._map[offset : offset + len(zone)] = zone
        rankrecord.SEQUENCE.pack_into(self._map, lock, sequence + 2)


@contextlib.contextmanager
def ranks(run_dir: Path) -> Iterator[list[Rank]]:
    every: list[Rank] = []
    try:
        for local_rank in range(RANKS):
            every.append(Rank(run_dir, local_rank))
        yield every
    finally:
        for rank in every:
            rank.process.kill()
            rank.process.wait()


@contextlib.asynccontextmanager
async def watchdog(sequences: list[int]) -> AsyncIterator[int]:
    """Takes every report, notes its number; yields its port."""
    decoder: msgspec.msgpack.Decoder[FromAgent] = msgspec.msgpack.Decoder(FromAgent)
    encoder = msgspec.msgpack.Encoder()

    async def serve(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for frame in socket:
            message = decoder.decode(frame.data)
            if isinstance(message, AgentHello):
                await socket.send_bytes(encoder.encode(Pace(interval_s=1.0, stalled_after_s=0.8)))
            else:
                sequences.append(message.sequence)
                await socket.send_bytes(encoder.encode(ReportTaken(message.sequence)))
        return socket

    application = web.Application()
    application.router.add_get("/v1/agent", serve)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def machine(gpus: Gpus, folder: Path) -> Machine:
    """Raises RuntimeError where the library cannot be made."""
    if gpus is Gpus.SIMULATED:
        return Machine(("--simulated-gpus", str(GPUS)), os.environ)
    sys.path.append(str(SERVERS))
    from fake_nvml import FakeNvml

    return Machine(("--disk", "/"), FakeNvml(folder, gpus=GPUS).environment())


@contextlib.contextmanager
def agent(run_dir: Path, watchdog_port: int, machine: Machine) -> Iterator[int]:
    """A fresh agent; yields its process id."""
    token_file = run_dir / "token"
    token_file.write_text(TOKEN)
    command = f"--node bench --job bench/agent --run-dir {run_dir} --token-file {token_file}".split()
    command += ["--watchdog", f"127.0.0.1:{watchdog_port}", *machine.flags]
    with subprocess.Popen(
        (sys.executable, "-m", "holdfast.agent", *command), env=dict(machine.environment)
    ) as process:
        try:
            yield process.pid
        finally:
            process.terminate()


async def one_run(seconds: float, gpus: Gpus) -> Cost:
    """Start, settle, watch for `seconds`, stop."""
    sequences: list[int] = []
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder, ranks(Path(folder)) as training:
        async with watchdog(sequences) as port:
            with agent(Path(folder), port, machine(gpus, Path(folder))) as pid:
                moving = asyncio.create_task(keep_moving(training))
                await asyncio.sleep(SETTLE_S)
                began, used_before, reports_before = time.monotonic(), cpu_s(pid), len(sequences)
                scrapes = []
                while time.monotonic() < began + seconds:
                    await asyncio.sleep(SCRAPE_EVERY_S)
                    scrapes.append(await scrape(Path(folder)))
                passed, used = time.monotonic() - began, cpu_s(pid) - used_before
                resident, proportional = memory_mb(pid)
                moving.cancel()
    reports_per_s = (len(sequences) - reports_before) / passed
    return Cost(resident, proportional, used / passed, reports_per_s, scrapes)


async def keep_moving(training: list[Rank]) -> None:
    while True:
        for rank in training:
            rank.tick()
        await asyncio.sleep(0.05)


async def scrape(run_dir: Path) -> Scrape:
    """What Prometheus does."""
    where = json.loads((run_dir / "agent.json").read_text())
    url = f"http://{where['host']}:{where['port']}/metrics"
    began = time.monotonic()
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, headers={"Authorization": f"Bearer {TOKEN}"}) as answer,
    ):
        text = await answer.text()
    took_s = time.monotonic() - began
    assert "holdfast_rank_step{" in text
    assert text.count("DCGM_FI_DEV_GPU_TEMP{") == GPUS
    return Scrape(took_s, len(text.encode()), sum(not line.startswith("#") for line in text.splitlines()))


def memory_mb(pid: int) -> tuple[float, float]:
    """Resident and proportional set size."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.endswith("kB")}
    return kilobytes["Rss"] * 1024 / MEGABYTE, kilobytes["Pss"] * 1024 / MEGABYTE


# What each figure is, in which unit, and its limit.
LIMITS: Final = (
    ("resident memory", "MB", 80.0),
    ("proportional memory", "MB", 80.0),
    ("CPU", "% of a core", 1.0),
    ("scrape", "ms", 20.0),
    ("scrape", "series", 1000.0),
    ("scrape", "kB", 100.0),
)


def figures_of(gpus: Gpus, costs: list[Cost]) -> Iterator[Figure]:
    """The runs against the limits."""
    scrapes = [each for cost in costs for each in cost.scrapes]
    ours = (
        [cost.resident_mb for cost in costs],
        [cost.proportional_mb for cost in costs],
        [100.0 * cost.core_share for cost in costs],
        [1e3 * each.took_s for each in scrapes],
        [float(each.series) for each in scrapes],
        [each.size_bytes / 1e3 for each in scrapes],
    )
    for (what, unit, limit), values in zip(LIMITS, ours, strict=True):
        yield measured(_name(what, unit, gpus), ours=values, other=[limit], unit=unit, target=1.0)


def _name(what: str, unit: str, gpus: Gpus) -> str:
    return f"agent {what} in {unit} at {RANKS} ranks and {GPUS} GPUs ({gpus.value}), 1 Hz"


def runs(gpus: Gpus, number: int, seconds: float) -> list[Figure]:
    """All figures with these GPUs."""
    costs = []
    try:
        for each in range(number):
            costs.append(asyncio.run(one_run(seconds, gpus)))
            print(f"{gpus.value}, run {each + 1} of {number}: {costs[-1]}", flush=True)
    except RuntimeError as error:
        return [
            unmeasured(_name(what, unit, gpus), unit=unit, target=1.0, reason=str(error))
            for what, unit, _ in LIMITS
        ]
    return list(figures_of(gpus, costs))


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--only", default=",".join(Gpus))
    given = parser.parse_args()
    wanted = [Gpus(name) for name in given.only.split(",")]
    publish("agent", [figure for gpus in wanted for figure in runs(gpus, given.runs, given.seconds)])


if __name__ == "__main__":
    main()
