"""A worker that ends with exit code zero before its training is over has left, and is told of as such."""

import os
import signal

import pytest
from fake_watchdog import FakeWatchdog
from launch_harness import SCRIPTS, Nodes, line_in

from holdfast.api.membership import Beat, Join, WorkerExited, WorkersFinished

LEAVES = str(SCRIPTS / "leaves.py")


@pytest.mark.parametrize(
    ("how", "left", "asked_by"),
    [
        ("handler", True, signal.SIGTERM),
        ("thread", True, None),
        ("finally", True, None),
        ("unmodified", False, signal.SIGTERM),
        ("graceful", False, signal.SIGTERM),
    ],
)
async def test_who_leaves_with_zero_has_not_finished_and_is_replaced_in_the_next_round(
    watchdog: FakeWatchdog, nodes: Nodes, how: str, left: bool, asked_by: int | None
) -> None:
    node = await nodes.start("a", watchdog.endpoint, LEAVES, how)
    await watchdog.wait_for(Join)
    await watchdog.show(watchdog.round(1, "a"))
    if how != "finally":
        pid = int((await line_in(node.log(0, 1), "trains pid")).rpartition(" ")[2])
        os.kill(pid, signal.SIGTERM)
    exited = await watchdog.wait_for(WorkerExited, timeout_s=60)
    assert (exited.exit_code, exited.left, exited.asked_by) == (0, left, asked_by)
    await watchdog.wait_for(Beat, count=len(watchdog.all_of(Beat)) + 3)
    assert watchdog.all_of(WorkersFinished) == []
    assert list(node.folder.glob("signals-*")) == []
    if how != "finally":
        await watchdog.show(watchdog.round(2, "a"))
        await line_in(node.log(0, 2), "trains pid")


async def test_who_returns_has_finished(watchdog: FakeWatchdog, nodes: Nodes) -> None:
    await nodes.start("a", watchdog.endpoint, LEAVES, "returns", local_size=2)
    await watchdog.wait_for(Join)
    await watchdog.show(watchdog.round(1, "a"))
    assert (await watchdog.wait_for(WorkersFinished, timeout_s=60)).round == 1
    assert all(each.is_end for each in watchdog.all_of(WorkerExited))


async def test_an_unmodified_program_is_not_finished_when_its_launcher_was_told_to_end(
    watchdog: FakeWatchdog, nodes: Nodes
) -> None:
    program = ("--no-python", "sh", "-c", "trap 'exit 0' TERM; echo trains pid $$; while :; do sleep 0.05; done")
    node = await nodes.start("a", watchdog.endpoint, *program, flags=("--leave-grace", "60"))
    await watchdog.wait_for(Join)
    await watchdog.show(watchdog.round(1, "a"))
    pid = int((await line_in(node.log(0, 1), "trains pid")).rpartition(" ")[2])
    node.process.terminate()
    await line_in(node.output, "told to end")
    os.kill(pid, signal.SIGTERM)
    exited = await watchdog.wait_for(WorkerExited)
    assert (exited.exit_code, exited.asked_by) == (0, signal.SIGTERM)
    assert watchdog.all_of(WorkersFinished) == []
