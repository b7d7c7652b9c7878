"""The launcher's transfer server: a real one, real launchers, no torch."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from fake_watchdog import FakeWatchdog
from launch_harness import SCRIPTS, Node, Nodes, is_alive, line_in, no_process_left
from patience import patient

from holdfast.api.membership import Beat, Join, WorkerExited
from holdfast.api.memory import MemoryRound
from holdfast.api.round import Restore, Round
from holdfast.checkpoint.memory.peers import Peer
from holdfast.checkpoint.memory.protocol import ProtocolError, Which

pytestmark = pytest.mark.long

ATTACHES = ("--no-python", sys.executable, str(SCRIPTS / "attaches.py"))
OWNER = "life-1"
PATIENCE_S = patient(30.0)


def keeping(watchdog: FakeWatchdog, number: int, owner: str = OWNER) -> Round:
    """A round of member a that keeps snapshots."""
    join = watchdog.joins["a"]
    memory = MemoryRound(1, 1, (f"{join.address}:{join.transfer_port}",), ((),))
    return watchdog.round(number, "a", restore=Restore(owner=owner), memory=memory)


async def training(watchdog: FakeWatchdog, nodes: Nodes, *flags: str) -> Node:
    """Member a, with a worker in a round that keeps snapshots, and its server up."""
    node = await nodes.start("a", watchdog.endpoint, *ATTACHES, flags=flags)
    await watchdog.wait_for(Join)
    await watchdog.show(keeping(watchdog, 1))
    await line_in(node.log(0, 1), "entered 1")
    return node


async def until(condition: Callable[[], bool], what: str) -> None:
    """Look until `condition` holds; fails by saying `what` did not come."""
    give_up = time.monotonic() + PATIENCE_S
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < give_up, f"waited {PATIENCE_S} s for {what}"
        await asyncio.sleep(0.02)


def answers(join: Join, owner: str = OWNER) -> bool:
    """Whether somebody who knows `owner` serves snapshots there."""
    try:
        peer = Peer(f"{join.address}:{join.transfer_port}", owner, patience_s=5.0)
    except OSError:
        return False
    try:
        with pytest.raises(ProtocolError, match="no such snapshot"):
            peer.read(Which(rank=0, round=0, step=0), 0, memoryview(bytearray(1)))
        return True
    finally:
        peer.close()


async def served(join: Join, owner: str = OWNER) -> None:
    await until(lambda: answers(join, owner), "the transfer server")


def servers(node: Node) -> list[psutil.Process]:
    return [each for each in node.descendants() if is_server(each)]


def is_server(process: psutil.Process) -> bool:
    try:
        return is_alive(process) and "holdfast.checkpoint.memory" in process.cmdline()
    except psutil.NoSuchProcess:  # it has ended just now
        return False


def folders(node: Node) -> list[Path]:
    return list(node.folder.glob(f"holdfast-{os.geteuid()}-*"))


async def test_a_round_that_keeps_snapshots_gets_a_server_that_asks_for_the_key(
    watchdog: FakeWatchdog, nodes: Nodes
) -> None:
    node = await training(watchdog, nodes)
    join = watchdog.joins["a"]
    await served(join)
    assert not answers(join, "another life of the job")
    (server,) = servers(node)
    assert not any(OWNER in word for word in (*server.cmdline(), *server.environ().values()))
    assert "HOLDFAST_TOKEN" not in server.environ()


async def test_a_round_without_snapshots_gets_none(watchdog: FakeWatchdog, nodes: Nodes) -> None:
    node = await nodes.start("a", watchdog.endpoint, *ATTACHES)
    await watchdog.wait_for(Join)
    await watchdog.show(watchdog.round(1, "a", restore=Restore(owner=OWNER)))
    await line_in(node.log(0, 1), "entered 1")
    await watchdog.wait_for(Beat, count=len(watchdog.all_of(Beat)) + 3)
    assert servers(node) == []


async def test_a_server_that_is_killed_comes_back_at_its_port_and_training_goes_on(
    watchdog: FakeWatchdog, nodes: Nodes
) -> None:
    node = await training(watchdog, nodes)
    join = watchdog.joins["a"]
    await served(join)
    (first,) = servers(node)
    first.kill()
    await line_in(node.output, "the transfer server ended, it is started again status=-9")
    await served(join)
    assert servers(node) != [first]
    assert watchdog.all_of(WorkerExited) == []


async def test_another_life_of_the_job_has_another_key(watchdog: FakeWatchdog, nodes: Nodes) -> None:
    await training(watchdog, nodes)
    join = watchdog.joins["a"]
    await served(join)
    await watchdog.show(keeping(watchdog, 2, "life-2"))
    await served(join, "life-2")
    assert not answers(join)


async def test_snapshots_are_cleared_when_the_job_wants_none_any_more(
    watchdog: FakeWatchdog, nodes: Nodes
) -> None:
    node = await training(watchdog, nodes)
    await served(watchdog.joins["a"])
    (folder,) = folders(node)
    (folder / "slot-000.0.own").touch()
    await watchdog.show(watchdog.round(2, "a", restore=Restore(owner=OWNER)))
    await until(lambda: not servers(node), "the end of the server")
    assert not (folder / "slot-000.0.own").exists()


async def test_snapshots_outlive_a_launcher_that_is_killed(watchdog: FakeWatchdog, nodes: Nodes) -> None:
    node = await training(watchdog, nodes)
    await served(watchdog.joins["a"])
    (folder,) = folders(node)
    (folder / "slot-000.0.own").touch()
    left = node.descendants()
    node.process.kill()
    await node.wait()
    await no_process_left(left, PATIENCE_S)
    again = await nodes.start("a", watchdog.endpoint, *ATTACHES)
    await watchdog.wait_for(Join, count=2)
    await watchdog.show(keeping(watchdog, 2))
    await line_in(again.log(0, 2), "entered 2")
    await served(watchdog.joins["a"])
    assert folders(again) == [folder]
    assert (folder / "slot-000.0.own").exists()


async def test_snapshots_go_with_a_job_that_is_closed(watchdog: FakeWatchdog, nodes: Nodes) -> None:
    node = await training(watchdog, nodes)
    await served(watchdog.joins["a"])
    left = node.descendants()
    await watchdog.show(watchdog.closed(2, succeeded=True))
    assert await node.wait(PATIENCE_S) == 0
    assert folders(node) == []
    await no_process_left(left, PATIENCE_S)


async def test_snapshots_go_with_a_launcher_that_is_told_to_end(watchdog: FakeWatchdog, nodes: Nodes) -> None:
    node = await training(watchdog, nodes)
    await served(watchdog.joins["a"])
    left = node.descendants()
    node.process.send_signal(signal.SIGTERM)
    assert await node.wait(PATIENCE_S) == 128 + signal.SIGTERM
    assert folders(node) == []
    await no_process_left(left, PATIENCE_S)


async def test_without_memory_training_goes_on_and_it_is_said_why(watchdog: FakeWatchdog, nodes: Nodes) -> None:
    node = await training(watchdog, nodes, "--memory-dir", str(nodes.folder / "missing"))
    said = await line_in(node.output, "no snapshots in memory on this node")
    assert "training goes on without" in said
    assert "No such file or directory" in said
    assert watchdog.joins["a"].transfer_port == 0
    assert servers(node) == []


async def test_a_server_that_never_comes_up_is_told_of_once(watchdog: FakeWatchdog, nodes: Nodes) -> None:
    node = await nodes.start("a", watchdog.endpoint, *ATTACHES)
    await watchdog.wait_for(Join)
    (folder,) = folders(node)
    (folder / "server.lock").mkdir()  # the server cannot open its lock
    await watchdog.show(keeping(watchdog, 1))
    await line_in(node.output, "the transfer server ended")
    await line_in(node.log(0, 1), "entered 1")
    await until(lambda: node.output.read_text().count("IsADirectoryError") >= 2, "another try")
    assert node.output.read_text().count("the transfer server ended") == 1
    assert watchdog.all_of(WorkerExited) == []
