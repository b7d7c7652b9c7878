"""One launcher, real processes, no torch: how workers follow the desired state."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import psutil
from fake_watchdog import FakeWatchdog
from launch_harness import SCRIPTS, Node, Nodes, line_in, no_process_left

from holdfast.api.membership import (
    Beat,
    CheckpointCommitted,
    CollectiveFailed,
    Join,
    Leave,
    RoundEntered,
    WorkerExited,
    WorkersFinished,
)
from holdfast.api.round import Entry

WAITS = ("--no-python", sys.executable, str(SCRIPTS / "waits.py"))
ATTACHES = ("--no-python", sys.executable, str(SCRIPTS / "attaches.py"))


async def worker(node: Node, rank: int, round_: int) -> dict[str, str]:
    """What `waits.py` said of itself."""
    given: dict[str, str] = json.loads(await line_in(node.log(rank, round_), "RANK"))
    return given


async def test_workers_get_the_environment_torchrun_sets(watchdog: FakeWatchdog, nodes: Nodes) -> None:
    node = await nodes.start("a", watchdog.endpoint, *WAITS, local_size=2)
    await watchdog.wait_for(Join)
    round_ = watchdog.round(4, "a")
    await watchdog.show(round_)
    given = await worker(node, 1, 4)
    expected = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "GROUP_RANK": "0", "HOLDFAST_ROUND": "4"}
    assert expected.items() <= given.items()
    assert given["MASTER_PORT"] == str(round_.endpoint.port)
    assert given["TORCHELASTIC_RESTART_COUNT"] == "0"
    entered = await watchdog.wait_for(RoundEntered)
    assert entered == RoundEntered(4, reentrant=False)


async def test_a_new_round_replaces_workers_that_cannot_reenter(watchdog: FakeWatchdog, nodes: Nodes) -> None:
    node = await nodes.start("a", watchdog.endpoint, *WAITS)
    await watchdog.wait_for(Join)
    await watchdog.show(watchdog.round(1, "a", entry=Entry.REENTER))
    old = await worker(node, 0, 1)
    processes = [psutil.Process(int(old["pid"])), psutil.Process(int(old["child"]))]
    await watchdog.show(watchdog.round(2, "a", entry=Entry.REENTER))
    new = await worker(node, 0, 2)
    assert new["pid"] != old["pid"]
    assert new["TORCHELASTIC_RESTART_COUNT"] == "1"
    await no_process_left(processes)
    assert watchdog.all_of(WorkerExited) == []


async def test_a_stopped_worker_is_replaced_at_once(watchdog: FakeWatchdog, nodes: Nodes) -> None:
    node = await nodes.start("a", watchdog.endpoint, *WAITS)
    await watchdog.wait_for(Join)
    await watchdog.show(watchdog.round(1, "a"))
    old = await worker(node, 0, 1)
    os.kill(int(old["pid"]), signal.SIGSTOP)
    await watchdog.show(watchdog.round(2, "a"))
    assert (await worker(node, 0, 2))["pid"] != old["pid"]


def names_below(pid: int) -> set[str]:
    """The programs that run below a process; one that ends meanwhile is not among them."""
    names = set()
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            names.add(process.name())
    return names


async def test_a_failure_is_reported_with_its_last_words_and_nothing_is_restarted(
    watchdog: FakeWatchdog, nodes: Nodes
) -> None:
    node = await nodes.start("a", watchdog.endpoint, *WAITS, "fail")
    await watchdog.wait_for(Join)
    shown_at = time.monotonic()
    await watchdog.show(watchdog.round(1, "a"))
    failed = await watchdog.wait_for(WorkerExited)
    assert (failed.round, failed.rank, failed.exit_code, failed.signal) == (1, 0, 3, None)
    assert "the loss is not a number" in failed.error
    assert 0 <= failed.age_s < time.monotonic() - shown_at
    for _ in range(200):  # they are killed, and gone a moment later
        if "sleep" not in (below := names_below(node.process.pid)):
            break
        await asyncio.sleep(0.05)
    assert "sleep" not in below, "a failed worker's own children are gone"
    await line_in(node.output, "the loss is not a number")
    await watchdog.wait_for(Beat, count=len(watchdog.all_of(Beat)) + 3)
    assert len(watchdog.all_of(WorkerExited)) == 1


async def test_a_killed_worker_is_reported_with_its_signal(watchdog: FakeWatchdog, nodes: Nodes) -> None:
    node = await nodes.start("a", watchdog.endpoint, *WAITS)
    await watchdog.wait_for(Join)
    await watchdog.show(watchdog.round(1, "a"))
    os.kill(int((await worker(node, 0, 1))["pid"]), signal.SIGKILL)
    failed = await watchdog.wait_for(WorkerExited)
    assert (failed.exit_code, failed.signal) == (None, signal.SIGKILL)


async def test_all_workers_ending_well_is_reported_once_and_closed_ends_the_launcher(
    watchdog: FakeWatchdog, nodes: Nodes
) -> None:
    node = await nodes.start("a", watchdog.endpoint, *WAITS, "finish", local_size=2)
    await watchdog.wait_for(Join)
    await watchdog.show(watchdog.round(1, "a"))
    assert await watchdog.wait_for(WorkersFinished) == WorkersFinished(1)
    await watchdog.show(watchdog.closed(2, succeeded=True))
    assert await node.wait() == 0
    assert len(watchdog.all_of(WorkersFinished)) == 1
    # Whoever ends a moment before the others is told of: the others may never end.
    assert all(each.exit_code == 0 for each in watchdog.all_of(WorkerExited))
    assert "a worker failed" not in node.output.read_text()


async def test_a_failed_job_ends_the_launcher_with_one_and_leaves_no_process(
    watchdog: FakeWatchdog, nodes: Nodes
) -> None:
    node = await nodes.start("a", watchdog.endpoint, *WAITS, local_size=2)
    await watchdog.wait_for(Join)
    await watchdog.show(watchdog.round(1, "a"))
    await worker(node, 1, 1)
    started = node.descendants()
    await watchdog.show(watchdog.closed(2, succeeded=False))
    assert await node.wait() == 1
    await no_process_left(started)


async def test_an_attached_worker_enters_the_next_round_in_its_process(
    watchdog: FakeWatchdog, nodes: Nodes
) -> None:
    node = await nodes.start("a", watchdog.endpoint, *ATTACHES, local_size=2)
    await watchdog.wait_for(Join)
    await watchdog.show(watchdog.round(1, "a"))
    await watchdog.wait_for(RoundEntered, where=lambda entered: entered.reentrant)
    log = node.log(0, 1)
    pid = (await line_in(log, "entered 1")).split()[-1]
    await watchdog.show(watchdog.round(2, "a", entry=Entry.REENTER, fresh=(1,)))
    entered = await watchdog.wait_for(RoundEntered, where=lambda entered: entered.round == 2 and entered.reentrant)
    assert entered.last_step == 41
    assert (await line_in(log, "entered 2")).split()[-1] == pid
    await line_in(node.log(1, 2), "entered 2")  # the fresh rank has a new process, so a new log
    committed = await watchdog.wait_for(CheckpointCommitted, where=lambda committed: committed.round == 2)
    assert committed.step == 20


async def test_a_worker_waits_parked_through_an_idle_time(watchdog: FakeWatchdog, nodes: Nodes) -> None:
    node = await nodes.start("a", watchdog.endpoint, *ATTACHES)
    await watchdog.wait_for(Join)
    await watchdog.show(watchdog.round(1, "a"))
    await line_in(node.log(0, 1), "entered 1")
    await watchdog.show(watchdog.idle(2))
    await line_in(node.log(0, 1), "left 1")
    await watchdog.show(watchdog.round(3, "a", entry=Entry.REENTER))
    await line_in(node.log(0, 1), "entered 3")


async def test_a_worker_that_does_not_leave_is_replaced(watchdog: FakeWatchdog, nodes: Nodes) -> None:
    node = await nodes.start("a", watchdog.endpoint, *ATTACHES, "deaf")
    await watchdog.wait_for(Join)
    await watchdog.show(watchdog.round(1, "a"))
    await line_in(node.log(0, 1), "entered 1")
    await watchdog.show(watchdog.round(2, "a", entry=Entry.REENTER))
    await line_in(node.log(0, 2), "entered 2")
    assert watchdog.all_of(WorkerExited) == []


async def test_a_broken_collective_is_passed_on(watchdog: FakeWatchdog, nodes: Nodes) -> None:
    await nodes.start("a", watchdog.endpoint, *ATTACHES, "collective")
    await watchdog.wait_for(Join)
    await watchdog.show(watchdog.round(1, "a"))
    broke = await watchdog.wait_for(CollectiveFailed)
    assert (broke.round, broke.rank, broke.error) == (1, 0, "connection reset by peer")


async def test_a_spare_waits_and_takes_over(watchdog: FakeWatchdog, nodes: Nodes) -> None:
    await nodes.start("a", watchdog.endpoint, *WAITS)
    spare = await nodes.start("b", watchdog.endpoint, *WAITS)
    for member in ("a", "b"):
        await watchdog.wait_for(Join, member=member)
    await watchdog.show(watchdog.round(1, "a"))
    await watchdog.wait_for(RoundEntered, member="a")
    assert not any((spare.folder / "logs").iterdir())
    await watchdog.show(watchdog.round(2, "b"))
    assert (await worker(spare, 0, 2))["RANK"] == "0"


async def test_output_is_shown_with_its_rank_when_asked(watchdog: FakeWatchdog, nodes: Nodes) -> None:
    node = await nodes.start("a", watchdog.endpoint, *WAITS, "finish", local_size=2, flags=("--tee", "1:3"))
    await watchdog.wait_for(Join)
    await watchdog.show(watchdog.round(1, "a"))
    await watchdog.wait_for(WorkersFinished)
    await line_in(node.output, "[rank1]: {")
    assert "[rank0]" not in node.output.read_text()


async def test_the_flags_of_torchrun_are_taken_or_refused_by_name(watchdog: FakeWatchdog, nodes: Nodes) -> None:
    flags = "--nnodes 1:4 --rdzv-backend holdfast --max-restarts 3 --run-path --redirects 3 --local-addr 127.0.0.7"
    node = await nodes.start("a", watchdog.endpoint, *WAITS, flags=(*flags.split(), "--log-level", "debug"))
    joined = await watchdog.wait_for(Join)
    assert joined.address == "127.0.0.7"
    await watchdog.show(watchdog.round(1, "a"))
    given = psutil.Process(int((await worker(node, 0, 1))["pid"])).environ()
    assert given["TORCHELASTIC_MAX_RESTARTS"] == "3"
    assert " DEBUG " in node.output.read_text()
    static = ("--node-rank", "--master-addr", "--master-port")
    refused = await nodes.start(
        "b", watchdog.endpoint, *WAITS, flags=[word for flag in static for word in (flag, "1")]
    )
    assert await refused.wait() == 2
    said = refused.output.read_text()
    assert all(f"{flag}: '1' is not accepted; leave it out" in said for flag in static)


async def test_a_module_is_an_entry_point(watchdog: FakeWatchdog, nodes: Nodes) -> None:
    node = await nodes.start("a", watchdog.endpoint, "json.tool", "--help", flags=("--module",))
    await watchdog.wait_for(Join)
    await watchdog.show(watchdog.round(1, "a"))
    assert "usage" in await line_in(node.log(0, 1), "usage")
    await watchdog.wait_for(WorkersFinished, timeout_s=60)


async def test_sigterm_says_goodbye_and_leaves_no_process(watchdog: FakeWatchdog, nodes: Nodes) -> None:
    node = await nodes.start("a", watchdog.endpoint, *WAITS, local_size=2)
    await watchdog.wait_for(Join)
    await watchdog.show(watchdog.round(1, "a"))
    await worker(node, 1, 1)
    started = node.descendants()
    node.process.terminate()
    assert await node.wait() == 128 + signal.SIGTERM
    assert (await watchdog.wait_for(Leave)).reason == "stopped by SIGTERM"
    await no_process_left(started)


async def test_a_killed_launcher_leaves_no_process(watchdog: FakeWatchdog, nodes: Nodes) -> None:
    node = await nodes.start("a", watchdog.endpoint, *WAITS, local_size=2)
    await watchdog.wait_for(Join)
    await watchdog.show(watchdog.round(1, "a"))
    for rank in (0, 1):
        await worker(node, rank, 1)
    started = node.descendants()
    assert len(started) >= 5  # the warm parent, two workers and a child of each
    node.process.kill()
    await no_process_left(started)


async def test_a_killed_warm_parent_is_replaced_and_its_workers_are_reported(
    watchdog: FakeWatchdog, nodes: Nodes
) -> None:
    node = await nodes.start("a", watchdog.endpoint, *WAITS, local_size=2)
    await watchdog.wait_for(Join)
    await watchdog.show(watchdog.round(1, "a"))
    for rank in (0, 1):
        await worker(node, rank, 1)
    started = node.descendants()
    psutil.Process(node.process.pid).children()[0].kill()
    await watchdog.wait_for(WorkerExited, count=2)
    await no_process_left(started)
    await watchdog.show(watchdog.round(2, "a"))
    await worker(node, 1, 2)


async def test_training_goes_on_without_the_watchdog_and_it_is_told_what_it_missed(
    tmp_path: Path, nodes: Nodes
) -> None:
    first = FakeWatchdog()
    await first.open()
    node = await nodes.start("a", first.endpoint, *WAITS)
    await first.wait_for(Join)
    await first.show(first.round(1, "a"))
    pid = int((await worker(node, 0, 1))["pid"])
    await first.wait_for(RoundEntered)
    await first.close()
    assert psutil.pid_exists(pid)
    os.kill(pid, signal.SIGKILL)
    await line_in(node.output, "a worker failed")
    async with FakeWatchdog(port=first.port) as second:
        joined = await second.wait_for(Join)
        assert joined.boot == first.joins["a"].boot
        failed = await second.wait_for(WorkerExited)
        assert (failed.round, failed.signal) == (1, signal.SIGKILL)
        assert failed.age_s > 0
        assert await second.wait_for(RoundEntered) == RoundEntered(1, reentrant=False)
        second.joins["a"] = joined
        await second.show(second.round(2, "a"))
        await worker(node, 0, 2)


async def test_a_reconnect_during_a_round_says_which_one_is_held_and_disturbs_nothing(nodes: Nodes) -> None:
    first = FakeWatchdog()
    await first.open()
    node = await nodes.start("a", first.endpoint, *WAITS)
    await first.wait_for(Join)
    round_ = first.round(1, "a")
    await first.show(round_)
    pid = int((await worker(node, 0, 1))["pid"])
    await first.close()
    async with FakeWatchdog(port=first.port, desired=round_) as second:
        assert (await second.wait_for(Join)).held_round == 1
        await second.wait_for(Beat, count=3)
        assert psutil.pid_exists(pid)


async def test_a_refused_launcher_ends_with_the_reason(nodes: Nodes) -> None:
    async with FakeWatchdog(refuse="no job of this name") as watchdog:
        node = await nodes.start("a", watchdog.endpoint, *WAITS)
        assert await node.wait() == 1
        assert "the watchdog refused this launcher: no job of this name" in node.output.read_text()
        assert "Traceback" not in node.output.read_text()


async def test_a_wrong_token_ends_in_a_sentence(watchdog: FakeWatchdog, nodes: Nodes) -> None:
    node = await nodes.start("a", watchdog.endpoint, *WAITS, token="wrong")
    assert await node.wait() == 1
    assert "does not accept this launcher's token" in node.output.read_text()
    assert "Traceback" not in node.output.read_text()


async def test_a_watchdog_that_is_not_there_yet_is_waited_for_and_said_once(
    watchdog: FakeWatchdog, nodes: Nodes
) -> None:
    await watchdog.close()
    node = await nodes.start("a", watchdog.endpoint, *WAITS)
    await line_in(node.output, "the watchdog is away")
    async with FakeWatchdog(port=watchdog.port) as late:
        await late.wait_for(Join)
    assert node.output.read_text().count("the watchdog is away") <= 2
