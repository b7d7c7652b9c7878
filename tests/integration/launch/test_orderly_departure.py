"""A launcher that is told to end and has time: it stays until its ranks are moved, and its token may change."""

import json
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest
from fake_watchdog import TOKEN, FakeWatchdog
from launch_harness import SCRIPTS, Node, Nodes, is_alive, line_in

from holdfast.api.membership import Departing, Join, Leave, RoundEntered
from holdfast.api.workeroutput import WorkerOutput

pytestmark = pytest.mark.long

WAITS = ("--no-python", sys.executable, str(SCRIPTS / "waits.py"))
GRACE_S = 25
LEAVING_S = 3  # of it are for saying goodbye and ending the workers
GRACE = ("--leave-grace", str(GRACE_S))


async def worker_of(node: Node) -> psutil.Process:
    return psutil.Process(json.loads(await line_in(node.log(0, 1), "RANK"))["pid"])


async def training(watchdog: FakeWatchdog, nodes: Nodes, *flags: str) -> Node:
    """A launcher "a" whose worker runs in round 1, with a spare "b" beside it."""
    node = await nodes.start("a", watchdog.endpoint, *WAITS, flags=flags)
    await nodes.start("b", watchdog.endpoint, *WAITS)
    for member in ("a", "b"):
        await watchdog.wait_for(Join, member=member)
    await watchdog.show(watchdog.round(1, "a"))
    await line_in(node.log(0, 1), "RANK")
    await watchdog.wait_for(RoundEntered, member="a")
    return node


async def test_it_says_so_and_leaves_when_a_round_without_it_is_shown(
    watchdog: FakeWatchdog, nodes: Nodes
) -> None:
    node = await training(watchdog, nodes, *GRACE)
    worker = await worker_of(node)
    told_at = time.monotonic()
    node.process.terminate()
    departing = await watchdog.wait_for(Departing)
    assert departing.reason == "told to end by SIGTERM"
    assert GRACE_S - LEAVING_S - (time.monotonic() - told_at) <= departing.within_s < GRACE_S
    assert is_alive(worker)
    await watchdog.show(watchdog.round(2, "b"))
    assert (await watchdog.wait_for(Leave)).reason == "stopped by SIGTERM"
    assert await node.wait() == 128 + signal.SIGTERM
    wrote = await watchdog.wait_for(WorkerOutput, member="a")
    assert (wrote.rank, wrote.pid, wrote.round) == (0, worker.pid, 1)
    assert b"RANK" in wrote.tail, "what its worker wrote outlives it"


async def test_a_round_that_still_needs_it_is_entered(watchdog: FakeWatchdog, nodes: Nodes) -> None:
    node = await training(watchdog, nodes, *GRACE)
    node.process.terminate()
    await watchdog.wait_for(Departing)
    await watchdog.show(watchdog.round(2, "a", "b"))
    await line_in(node.log(0, 2), "RANK")
    await watchdog.show(watchdog.idle(3))
    assert await node.wait() == 128 + signal.SIGTERM


async def test_it_leaves_when_the_time_is_up(watchdog: FakeWatchdog, nodes: Nodes) -> None:
    node = await training(watchdog, nodes, "--leave-grace", "3.5")
    node.process.terminate()
    assert 0.0 <= (await watchdog.wait_for(Departing)).within_s <= 0.5
    await watchdog.wait_for(Leave)
    assert await node.wait() == 128 + signal.SIGTERM


async def test_a_second_signal_ends_it_at_once(watchdog: FakeWatchdog, nodes: Nodes) -> None:
    node = await training(watchdog, nodes, *GRACE)
    node.process.terminate()
    await watchdog.wait_for(Departing)
    node.process.terminate()
    assert await node.wait() == 128 + signal.SIGTERM


async def test_a_spare_has_nothing_to_wait_for(watchdog: FakeWatchdog, nodes: Nodes) -> None:
    node = await nodes.start("a", watchdog.endpoint, *WAITS, flags=GRACE)
    await watchdog.wait_for(Join)
    await watchdog.show(watchdog.idle(1))
    await line_in(node.output, "shown kind=Idle")
    node.process.terminate()
    assert await node.wait() == 128 + signal.SIGTERM
    assert watchdog.all_of(Departing) == []


async def test_a_job_that_ends_meanwhile_ends_it_as_always(watchdog: FakeWatchdog, nodes: Nodes) -> None:
    node = await training(watchdog, nodes, *GRACE)
    node.process.terminate()
    await watchdog.wait_for(Departing)
    await watchdog.show(watchdog.closed(2, succeeded=True))
    assert await node.wait() == 0


async def test_a_watchdog_that_was_away_is_told_how_much_time_is_left(
    watchdog: FakeWatchdog, nodes: Nodes
) -> None:
    node = await training(watchdog, nodes, *GRACE)
    node.process.terminate()
    first = await watchdog.wait_for(Departing)
    await watchdog.hang_up()
    again = await watchdog.wait_for(Departing, count=2)
    assert again.within_s < first.within_s


async def test_a_token_that_expires_is_replaced_while_training_goes_on(
    watchdog: FakeWatchdog, nodes: Nodes, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    node = await training(watchdog, nodes, "--token-file", str(file))
    worker = await worker_of(node)
    watchdog.token = "renewed"
    await watchdog.hang_up()
    await watchdog.was_turning_away(6)
    assert is_alive(worker)
    file.write_text("renewed")
    joined = await watchdog.wait_for(Join, member="a", count=2)
    assert joined.held_round == 1
    assert is_alive(worker)


async def test_a_standby_is_asked_until_it_leads(watchdog: FakeWatchdog, nodes: Nodes) -> None:
    watchdog.standby = True
    node = await nodes.start("a", watchdog.endpoint, *WAITS)
    await watchdog.was_turning_away(3)
    watchdog.standby = False
    await watchdog.wait_for(Join)
    assert "the watchdog is away" not in node.output.read_text()  # a standby is no fault to tell of
