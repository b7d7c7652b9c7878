"""Unmodified training on two nodes with two ranks each: what a failure of either leaves behind."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest
from fake_watchdog import JOB, TOKEN, FakeWatchdog
from launch_harness import SCRIPTS, Node, Nodes, line_in, no_process_left
from patience import patient

from holdfast.api.membership import Join, RoundEntered, Warmed, WorkerExited

pytestmark = pytest.mark.long

DDP = str(SCRIPTS / "ddp.py")


async def warm(watchdog: FakeWatchdog, *members: str) -> None:
    for member in members:
        join = await watchdog.wait_for(Join, member=member)
        if not join.warm:
            await watchdog.wait_for(Warmed, member=member, timeout_s=60)


def workers(node: Node) -> list[psutil.Process]:
    return [process for process in node.descendants() if process.name().startswith("rank")]


async def test_training_goes_on_after_a_worker_and_after_a_node_was_killed(
    watchdog: FakeWatchdog, nodes: Nodes
) -> None:
    a = await nodes.start("a", watchdog.endpoint, DDP, local_size=2)
    b = await nodes.start("b", watchdog.endpoint, DDP, local_size=2)
    await warm(watchdog, "a", "b")
    await watchdog.show(watchdog.round(1, "a", "b"))
    for node, ranks in ((a, (0, 1)), (b, (2, 3))):
        for rank in ranks:
            await line_in(node.log(rank, 1), "step 2 ")

    worker = workers(b)[0]
    its_rank = int(worker.name().removeprefix("rank"))
    worker.kill()
    # The others fail as well once they notice, and their launchers may be the quicker to say so.
    killed = await watchdog.wait_for(WorkerExited, member="b", where=lambda said: said.signal == signal.SIGKILL)
    assert (killed.round, killed.rank) == (1, its_rank)
    await watchdog.show(watchdog.round(2, "a", "b"))
    for node, ranks in ((a, (0, 1)), (b, (2, 3))):
        for rank in ranks:
            await line_in(node.log(rank, 2), "step 2 ")

    lost = a.descendants()
    a.process.kill()  # the node that runs rank 0 and hosts the group's store
    await no_process_left(lost)
    await watchdog.show(watchdog.round(3, "b"))
    for rank in (0, 1):
        await line_in(b.log(rank, 3), "step 2 ")


async def test_stock_torchrun_runs_the_launcher_for_our_backend(watchdog: FakeWatchdog, tmp_path: Path) -> None:
    torchrun = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "torch.distributed.run", "--rdzv-backend=holdfast", f"--rdzv-endpoint={watchdog.endpoint}"),
        *(f"--rdzv-id={JOB}", "--nnodes=1:4", "--nproc-per-node=2", f"--rdzv-conf=member=a,run_dir={tmp_path}"),
        f"--log-dir={tmp_path / 'logs'}",
        DDP,
        env={**os.environ, "HOLDFAST_TOKEN": TOKEN},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        await warm(watchdog, "a")
        await watchdog.show(watchdog.round(1, "a"))
        await watchdog.wait_for(RoundEntered)
        await line_in(tmp_path / "logs" / "rank-00001.round-0001.log", "step 2 ")
        started = psutil.Process(torchrun.pid).children(recursive=True)
        await watchdog.show(watchdog.closed(2, succeeded=True))
        output, errors = await asyncio.wait_for(torchrun.communicate(), patient(20))
    finally:
        if torchrun.returncode is None:
            torchrun.kill()
            await torchrun.wait()
    assert torchrun.returncode == 0, errors.decode()
    assert b"[rank1]: step 0" in output
    await no_process_left(started)
