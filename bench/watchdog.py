"""What the watchdog bears on one core: a crowd of launchers and agents against the real program.

    python bench/watchdog.py [--nodes 12500] [--windows 5] [--window 4] [--faults 5] [--only core,jobs,redis,bare]

The watchdog is pinned to one core, the crowd to another: four processes, each with its own loopback address. Every
launcher beats once a second; reports of eight busy ranks and GPUs come once a second for every node. A process may
open a limited number of files, so that at most so many connections: where the limit may not be raised and not
every node can have an agent, those there are report more often, and the figure's name says how many they are.

CPU is taken from the scheduler, so that a neighbour on the core costs the figure time, not truth. Latencies are
what a launcher sees: they grow with every neighbour.
"""

import argparse
import contextlib
import resource
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final

from crowd.cast import Part
from crowd.crowd import Crowd, Spread, crowd
from crowd.server import Server, bare_server, check_taken, redis, watchdog
from figure import Figure, Goal, measured, publish, unmeasured

from holdfast.api.policy import Policy

NODES: Final = 12_500
SPARE_FILES: Final = 200
FILES: Final = 65_536
SERVER_CORE: Final = 0
CROWD_CORE: Final = 1
SETTLE_S: Final = 5.0
LATE_S_MAX: Final = 0.1
SCRAPE_EVERY_S: Final = 1.5
IDLE_CPU: Final = 0.05  # of one core
IDLE_WITHIN_S: Final = 600.0
KINDS: Final = ("core", "jobs", "redis", "bare")


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is played, and how often it is looked at."""

    nodes: int
    jobs: int
    windows: int
    window_s: float
    faults: int

    @property
    def agents(self) -> int:
        """How many connections are left for agents: of its files the watchdog keeps some free for strangers."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return max(1, min(self.nodes, limit - limit // 4 - limit // 16 - SPARE_FILES - self.nodes))

    @property
    def names(self) -> list[str]:
        return [f"bench/job{number}" for number in range(self.jobs)]

    def __str__(self) -> str:
        jobs = f"{self.jobs} jobs of {self.nodes // self.jobs}" if self.jobs > 1 else "one job"
        return f"{self.nodes} nodes, {jobs}, {self.nodes} reports/s from {self.agents} agents"


@dataclass(frozen=True, slots=True)
class Seen:
    """What one act showed. CPU in seconds per node and second."""

    join_s: float
    join_cpu_s: float
    cost_s: list[float]
    resident_mb: float
    spreads: list[Spread]
    late_s: float
    scrapes_s: list[float]
    loss_cpu_s: float = 0.0


def act(server: Server, scale: Scale) -> Seen:
    """Play it all to its end, where everybody's connection closes within moments, as a switch would have it."""
    seen, cpu = play(server, scale), server.cpu_s()
    return replace(seen, loss_cpu_s=idle_again(server) - cpu)


def idle_again(server: Server) -> float:
    """The CPU that the server has used, once it has nothing left to do. Raises TimeoutError."""
    give_up_at = time.monotonic() + IDLE_WITHIN_S
    while time.monotonic() < give_up_at:
        used = server.cpu_s()
        time.sleep(1.0)
        if server.cpu_s() - used < IDLE_CPU:
            return used
    raise TimeoutError(f"the server is busy {IDLE_WITHIN_S:.0f} s after everybody went")


def play(server: Server, scale: Scale, *, decides: bool = True) -> Seen:
    """Assemble, form, be busy for the windows, then lose a rank now and then."""
    members = scale.nodes // scale.jobs
    everybody = [Part(job, index) for index in range(members) for job in scale.names]
    with crowd(server, everybody, agents=scale.agents, reports_per_s=scale.nodes, core=CROWD_CORE) as players:
        if decides:
            for job in scale.names:
                # The crowd beats once it is all there; nobody is to be lost before that.
                policy = Policy(job, members, members, processes_per_node=8, lost_after_s=600.0)
                server.submit(policy)
        cpu, began = server.cpu_s(), time.monotonic()
        players.assemble("launchers")
        if decides:
            players.form()
        join_s, join_cpu_s = time.monotonic() - began, server.cpu_s() - cpu
        print(f"joined in {join_s:.1f} s, {join_cpu_s:.1f} s of CPU", flush=True)
        players.assemble("agents")
        players.be_busy()
        time.sleep(SETTLE_S)
        players.strain()
        taken, began = server.reports() if decides else 0, time.monotonic()
        costs = [window(server, scale) for _ in range(scale.windows)]
        if decides:
            check_taken(scale.nodes * (time.monotonic() - began), before=taken, after=server.reports())
        scrapes_s = [scrape(server) for _ in range(scale.windows)] if decides else []
        late_s = players.strain()
        print(f"cost {[f'{each * 1e6:.0f}' for each in costs]} us a node and second, crowd late {late_s:.3f} s")
        spreads = list(faults(players, scale)) if decides else []
        late_s = max(late_s, players.strain())
        return Seen(join_s, join_cpu_s, costs, server.resident_mb(), spreads, late_s, scrapes_s)


def scrape(server: Server) -> float:
    """Seconds until Prometheus has all metrics, on a busy server that has to look at every rank anew."""
    time.sleep(SCRAPE_EVERY_S)
    began = time.monotonic()
    server.ask("/metrics")
    return time.monotonic() - began


def window(server: Server, scale: Scale) -> float:
    """Seconds of CPU for each node and second: one report of its agent and one beat of its launcher."""
    cpu, began = server.cpu_s(), time.monotonic()
    time.sleep(scale.window_s)
    return (server.cpu_s() - cpu) / (time.monotonic() - began) / scale.nodes


def faults(players: Crowd, scale: Scale) -> Iterator[Spread]:
    """Ranks die one after the other, always after a checkpoint of a new step."""
    for number in range(scale.faults):
        job = scale.names[number % scale.jobs]
        spread = players.fail(job, 1 + number, step=10_000 * (number + 1))
        print(
            f"fault {number + 1}: first {spread.first_s * 1e3:.0f} ms, median {spread.median_s * 1e3:.0f},"
            f" p99 {spread.p99_s * 1e3:.0f}, last {spread.last_s * 1e3:.0f}",
            flush=True,
        )
        yield spread
        time.sleep(SETTLE_S)


def core_figures(seen: Seen, scale: Scale) -> list[Figure]:
    return [
        measured(
            f"nodes on one core with half of it idle ({scale})",
            ours=[0.5 / cost for cost in seen.cost_s],
            other=[float(NODES)],
            unit="nodes",
            target=1.0,
            goal=Goal.AT_LEAST,
        ),
        measured(
            f"watchdog resident memory ({scale})",
            ours=[seen.resident_mb],
            other=[1000.0],
            unit="MB",
            target=1.0,
        ),
        measured(
            f"scrape of the metrics ({scale})",
            ours=seen.scrapes_s,
            other=[1.0],
            unit="s",
            target=1.0,
        ),
        measured(
            f"{scale.nodes} launchers join and form the first round: CPU",
            ours=[seen.join_cpu_s],
            other=[10.0],
            unit="s",
            target=1.0,
        ),
        measured(
            f"{scale.nodes} launchers lose their connections at once: CPU until idle, x that of their joining",
            ours=[seen.loss_cpu_s],
            other=[seen.join_cpu_s],
            unit="s",
            target=1.0,
        ),
    ]


def breaks_first(seen: Seen) -> str:
    """What a watchdog of twice the nodes runs out of first: shares of what there is, by these measurements."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    double = 2 * NODES
    shares = {
        f"the one core that it decides on ({median(seen.cost_s) * 1e6:.0f} us a node and second)": double
        * median(seen.cost_s),
        f"{limit} open files (two connections a node, a quarter is for strangers)": 2 * double / (limit * 11 / 16),
        "1 GB of memory": 2 * seen.resident_mb / 1000.0,
    }
    told = "; ".join(f"{share:.0%} of {what}" for what, share in sorted(shares.items(), key=lambda each: -each[1]))
    return f"{double} nodes would take {told}: the first of these breaks first"


def latency_figures(seen: Seen, scale: Scale) -> list[Figure]:
    """None of them is worth anything when the crowd itself had no time to listen."""
    spreads = seen.spreads
    pairs = {
        "the first launcher": [each.first_s for each in spreads],
        "half of the launchers": [each.median_s for each in spreads],
        "99% of the launchers": [each.p99_s for each in spreads],
        "every launcher": [each.last_s for each in spreads],
    }
    names = {who: f"fault told to new round at {who} ({scale})" for who in pairs}
    if seen.late_s > LATE_S_MAX:
        reason = (
            f"the crowd fell {seen.late_s:.1f} s behind its own timetable: the machine is busy with other work"
        )
        return [unmeasured(name, unit="ms", target=1.0, reason=reason) for name in names.values()]
    return [
        measured(
            names[who],
            ours=[1e3 * each for each in delays],
            other=[50.0],
            unit="ms",
            target=1.0,
        )
        for who, delays in pairs.items()
    ]


@contextlib.contextmanager
def sqlite_watchdog() -> Iterator[Server]:
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name,
        watchdog(f"{name}/store.sqlite", Path(name), SERVER_CORE) as server,
    ):
        yield server


def figures_of(kinds: list[str], scale: Scale, several: Scale) -> Iterator[Figure]:
    """Each kind of figure that is asked for."""
    ours: Seen | None = None
    if "core" in kinds:
        with sqlite_watchdog() as server:
            ours = act(server, scale)
        yield from core_figures(ours, scale)
        print(breaks_first(ours), flush=True)
        yield from latency_figures(ours, scale) if ours.spreads else ()
    if "jobs" in kinds:
        with sqlite_watchdog() as server:
            seen = act(server, several)
        yield from latency_figures(seen, several)
    if "redis" in kinds:
        with (
            tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name,
            redis(Path(name)) as store,
            watchdog(store, Path(name), SERVER_CORE) as server,
        ):
            seen = act(server, scale)
        for each in (*core_figures(seen, scale), *latency_figures(seen, scale)):
            yield with_redis(each)
    if "bare" in kinds:
        yield bare_figure(ours, scale)


def with_redis(figure: Figure) -> Figure:
    return replace(figure, figure=f"with Redis: {figure.figure}")


def bare_figure(ours: Seen | None, scale: Scale) -> Figure:
    """What each node costs, against a server that only takes its frames."""
    name, unit = f"CPU a node and second, x a bare aiohttp echo of the same frames ({scale})", "us"
    if ours is None:
        return unmeasured(name, unit=unit, target=1.0, reason="ask for core too")
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder,
        bare_server(Path(folder), SERVER_CORE) as server,
    ):
        peer = play(server, scale, decides=False)
    return measured(
        name,
        ours=[1e6 * each for each in ours.cost_s],
        other=[1e6 * each for each in peer.cost_s],
        unit=unit,
        target=1.0,
    )


def _raise_files() -> None:
    """As many as every node's two connections need, where this user may have so many; else what there may be."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(most, FILES), max(most, FILES)))
    except (ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--windows", type=int, default=5)
    parser.add_argument("--window", type=float, default=4.0)
    parser.add_argument("--faults", type=int, default=5)
    parser.add_argument("--only", default=",".join(KINDS))
    given = parser.parse_args()
    _raise_files()
    one = Scale(given.nodes, 1, given.windows, given.window, given.faults)
    ten = Scale(given.nodes, 10, 1, given.window, 2 * given.faults)
    publish("watchdog", list(figures_of(given.only.split(","), one, ten)))


if __name__ == "__main__":
    main()
