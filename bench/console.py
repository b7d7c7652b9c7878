"""What a console costs: the watchdog that feeds it, and itself, with few and many readers, at full size.

    python bench/console.py [--nodes 6250] [--ranks 16] [--readers 200] [--windows 3] [--window 5]

A crowd plays launchers and agents of nodes with so many busy ranks against the real watchdog, which has a core of
its own; the console and its readers share the other one with the crowd. CPU is taken from the scheduler, so that
neighbours cost time, not truth. Every reader has a connection of its own and reads all it is sent. Every node has
an agent, for the console shows a step once all ranks have made it: 6,250 nodes of 16 ranks fit into 20,000 open
files.
"""

import argparse
import contextlib
import json
import multiprocessing
import resource
import socket
import tempfile
import time
import urllib.error
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
from crowd.cast import Part
from crowd.crowd import Crowd, crowd
from crowd.server import TOKEN, Server, console, watchdog
from figure import Figure, Goal, measured, publish

from holdfast.api.feed import StepsTold
from holdfast.api.policy import Policy
from holdfast.api.rankrecord import Phase
from holdfast.api.telemetry import ProcessState, RankSample
from holdfast.watchdog.server.rankcolumns import RankColumns

JOB: Final = "bench/job0"
SERVER_CORE, CROWD_CORE = 0, 1
SETTLE_S: Final = 5.0
TRAINS_WITHIN_S: Final = 180.0
SPARE_FILES: Final = 200
# Of one core: what the feed may cost who decides, and what 200 readers may cost the console.
FEED_SHARE: Final = 0.10
READERS_SHARE: Final = 0.60
PER_READER_SHARE: Final = 0.01  # at most, of what the watchdog costs anyway: nothing, and the noise of it
RESIDENT_MB: Final = 400.0
DOCUMENT_S: Final = 0.5
LOOK_S: Final = 0.05
PIECE_S: Final = 0.004  # as long as a slice of a scrape takes


@dataclass(frozen=True, slots=True)
class Cost:
    """Shares of a core, a value for each window."""

    watchdog: list[float]
    console: list[float]


def windows(server: Server, shown: Server | None, given: argparse.Namespace) -> Cost:
    """What both cost now."""
    cost = Cost([], [])
    time.sleep(SETTLE_S)
    for _ in range(given.windows):
        began = time.monotonic()
        before = server.cpu_s(), shown.cpu_s() if shown else 0.0
        time.sleep(given.window)
        took_s = time.monotonic() - began
        cost.watchdog.append((server.cpu_s() - before[0]) / took_s)
        cost.console.append(((shown.cpu_s() if shown else 0.0) - before[1]) / took_s)
    return cost


def read(port: int, count: int, events: Any) -> None:
    """`count` readers of the events of one job, until they are ended; of each, how many it was sent."""
    head = (
        f"GET /api/v1/jobs/{JOB}/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    ).encode()
    readers = []
    for _ in range(count):
        readers.append(socket.create_connection(("127.0.0.1", port)))
        readers[-1].sendall(head)
        readers[-1].settimeout(0.0)
    while True:
        for number, each in enumerate(readers):
            with contextlib.suppress(BlockingIOError):
                while content := each.recv(1 << 20):
                    events[number] += content.count(b"event: ")
        time.sleep(0.05)


@contextlib.contextmanager
def readers(port: int, count: int) -> Iterator[None]:
    """Raises RuntimeError at the end where one of them was left out."""
    spawn = multiprocessing.get_context("spawn")
    events = spawn.Array("Q", count)
    process = spawn.Process(target=read, args=(port, count, events), daemon=True)
    process.start()
    began = time.monotonic()
    try:
        yield
        took_s, told = time.monotonic() - began, events[:]
        print(f"{count} readers, {min(told) / took_s:.2f} to {max(told) / took_s:.2f} events a second each")
        if min(told) < 2:
            raise RuntimeError(f"{sum(each < 2 for each in told)} of {count} readers were sent nothing")
    finally:
        process.terminate()
        process.join()


def played(players: Crowd, server: Server, folder: Path, given: argparse.Namespace) -> Iterator[Figure]:
    alone = windows(server, None, given)
    scrapes = []
    for _ in range(given.windows):
        time.sleep(1.5)
        began = time.monotonic()
        server.ask("/metrics")
        scrapes.append(time.monotonic() - began)
    with console(server, folder, CROWD_CORE) as shown:
        _until_it_trains(shown, given.nodes * given.ranks)
        fed = windows(server, shown, given)
        with readers(shown.port, 1):
            one = windows(server, shown, given)
        with readers(shown.port, given.readers):
            many = windows(server, shown, given)
            asked = [_asked(shown, f"/api/v1/jobs/{JOB}") for _ in range(5)]
            columns = [_asked(shown, f"/api/v1/jobs/{JOB}/ranks") for _ in range(5)]
        resident = shown.resident_mb()
    print(f"watchdog: alone {alone.watchdog}, fed {fed.watchdog}, one {one.watchdog}, many {many.watchdog}")
    print(f"console: fed {fed.console}, one {one.console}, many {many.console}", flush=True)
    late_s = players.strain()
    print(f"the crowd was late by {late_s:.2f} s at worst")
    scale = f"{given.nodes * given.ranks:,} ranks on {given.nodes:,} nodes"
    yield from _figures(scale, given, alone, fed, many)
    yield measured(f"scrape of the watchdog's metrics, {scale}", ours=scrapes, other=[1.0], unit="s", target=1.0)
    yield measured(
        f"document with {given.readers} readers, {scale}", ours=asked, other=[DOCUMENT_S], unit="s", target=1.0
    )
    yield measured(
        f"columns of all ranks with {given.readers} readers, {scale}",
        ours=columns,
        other=[DOCUMENT_S],
        unit="s",
        target=1.0,
    )
    yield measured(
        f"console's resident memory, {scale}", ours=[resident], other=[RESIDENT_MB], unit="MB", target=1.0
    )


def _until_it_trains(shown: Server, world: int) -> None:
    """Until the console knows a step of every rank. Raises TimeoutError."""
    give_up_at = time.monotonic() + TRAINS_WITHIN_S
    knows = "nothing"
    while time.monotonic() < give_up_at:
        try:
            document = json.loads(shown.ask(f"/api/v1/jobs/{JOB}"))
        except urllib.error.HTTPError as error:  # it has not heard of the job yet
            knows = error.read().decode()
        else:
            if document["world"] == world and document["line"]["step"] is not None:
                return
            knows = f"{document['world']} of {world} ranks: {document['line']}"
        time.sleep(1.0)
    raise TimeoutError(f"the console knows {knows}")


def _figures(scale: str, given: argparse.Namespace, alone: Cost, fed: Cost, many: Cost) -> Iterator[Figure]:
    feed = [after - before for after, before in zip(fed.watchdog, alone.watchdog, strict=True)]
    yield measured(
        f"the feed's share of the deciding core, {scale}", ours=feed, other=[FEED_SHARE], unit="cores", target=1.0
    )
    yield measured(
        f"the watchdog with {given.readers} readers of the console, x that with none, {scale}",
        ours=many.watchdog,
        other=fed.watchdog,
        unit="cores",
        target=1.0 + PER_READER_SHARE * 10,
        goal=Goal.AT_MOST,
    )
    yield measured(f"the console, {scale}", ours=fed.console, other=[FEED_SHARE], unit="cores", target=1.0)
    yield measured(
        f"the console with {given.readers} readers, {scale}",
        ours=many.console,
        other=[READERS_SHARE],
        unit="cores",
        target=1.0,
    )


def _asked(server: Server, path: str) -> float:
    began = time.monotonic()
    server.ask(path)
    return time.monotonic() - began


def looks(count: int) -> Iterator[Figure]:
    """The watchdog's work on all ranks for one look, by itself: in one piece and in its longest slice."""
    told = [_sampled(count, step) for step in (7, 8)]
    columns, whole, longest = RankColumns(), list[float](), list[float]()
    for number in range(2 + 6):
        began = turned = time.process_time()
        longest.append(0.0)
        for _ in columns.look(told[number % 2], closely=number == 0):
            now = time.process_time()
            longest[-1], turned = max(longest[-1], now - turned), now
        msgspec.msgpack.encode(StepsTold(JOB, 1, 0.0, columns.columns, columns.waited))
        whole.append(time.process_time() - began)
    many = f"{count:,} ranks that all made a step"
    yield measured(f"one look, {many}: CPU", ours=whole[2:], other=[LOOK_S], unit="s", target=1.0)
    yield measured(f"one look, {many}: longest piece", ours=longest[2:], other=[PIECE_S], unit="s", target=1.0)


def _sampled(count: int, step: int) -> list[RankSample]:
    decoder = msgspec.msgpack.Decoder(RankSample)
    for_all = (ProcessState.RUNNING, Phase.BACKWARD, 0.1, 0.2, 0.05)
    return [
        decoder.decode(
            msgspec.msgpack.encode(RankSample(1, rank, *for_all, 4_000 + rank, step, 2.0, 2.5, 1.0, 4096))
        )
        for rank in range(count)
    ]


def figures(given: argparse.Namespace) -> Sequence[Figure]:
    by_itself = list(looks(given.nodes * given.ranks))
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = max(limit, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
    if 2 * given.nodes > (room := limit - limit // 4 - limit // 16 - SPARE_FILES):
        raise SystemExit(f"--nodes {given.nodes}: {limit} open files are enough for {room // 2} nodes")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        with watchdog(str(folder / "watchdog.db"), folder, SERVER_CORE) as server:
            server.submit(
                Policy(JOB, given.nodes, given.nodes, processes_per_node=given.ranks, lost_after_s=600.0)
            )
            everybody = [Part(JOB, index, given.ranks) for index in range(given.nodes)]
            with crowd(
                server, everybody, agents=given.nodes, reports_per_s=given.nodes, core=CROWD_CORE
            ) as players:
                players.assemble("launchers")
                players.form()
                players.assemble("agents")
                players.be_busy()
                return [*by_itself, *played(players, server, folder, given)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=6_250)
    parser.add_argument("--ranks", type=int, default=16, help="of each node")
    parser.add_argument("--readers", type=int, default=200)
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--window", type=float, default=5.0)
    publish("console", figures(parser.parse_args()))


if __name__ == "__main__":
    main()
