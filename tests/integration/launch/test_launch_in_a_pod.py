"""What is particular to a launcher in a pod: what it may write, what it leaves behind, how it ends."""

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from fake_watchdog import JOB, FakeWatchdog
from launch_harness import SCRIPTS, Nodes, confinement, line_in
from patience import patient

from holdfast.agent.memberfile import own_pid_namespace
from holdfast.api.membership import CheckpointCommitted, Join, WorkerExited, WorkersFinished

WAITS = ("--no-python", sys.executable, str(SCRIPTS / "waits.py"))


@pytest.mark.needs("namespaces")
def test_what_confines_it_does(tmp_path: Path) -> None:
    script = "id -u; echo $HOME; touch here && echo wrote; cd /tmp; touch there"
    command = [*confinement(tmp_path), "sh", "-c", f"cd {tmp_path}; {script}"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=patient(30))
    assert result.stdout.split() == ["12345", "/nonexistent", "wrote"]
    assert "Read-only file system" in result.stderr


@pytest.mark.needs("namespaces")
async def test_training_needs_no_user_no_home_and_no_file_system_but_its_run_directory(
    watchdog: FakeWatchdog, nodes: Nodes, tmp_path: Path
) -> None:
    uri = (tmp_path / "a" / "checkpoints").as_uri()
    arguments = (str(SCRIPTS / "saves.py"), "--uri", uri, "--until", "5")
    node = await nodes.start("a", watchdog.endpoint, *arguments, local_size=2, confined=True)
    await watchdog.wait_for(Join)
    await watchdog.show(watchdog.round(1, "a"))
    assert (await watchdog.wait_for(CheckpointCommitted, timeout_s=60)).step == 5
    await watchdog.wait_for(WorkersFinished)
    await watchdog.show(watchdog.closed(2, succeeded=True))
    assert await node.wait() == 0
    assert "Traceback" not in node.output.read_text()


async def test_it_says_in_its_run_directory_who_uses_it(watchdog: FakeWatchdog, nodes: Nodes) -> None:
    node = await nodes.start("a", watchdog.endpoint, *WAITS)
    join = await watchdog.wait_for(Join)
    assert json.loads((node.folder / "member.json").read_text()) == {
        "job": JOB,
        "member": "a",
        "node": "a",
        "boot": join.boot,
        "pid_namespace": own_pid_namespace(),
    }


@pytest.mark.needs("namespaces")
async def test_the_first_process_of_a_pod_leaves_no_zombies(watchdog: FakeWatchdog, nodes: Nodes) -> None:
    prefix = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    node = await nodes.start("a", watchdog.endpoint, *WAITS, prefix=prefix)
    await watchdog.wait_for(Join)
    for number in (1, 2):
        await watchdog.show(watchdog.round(number, "a"))
        await line_in(node.log(0, number), "RANK")
        (worker,) = [each for each in node.descendants() if is_waits(each)]
        worker.kill()
        await watchdog.wait_for(WorkerExited, count=number)
    (launcher,) = psutil.Process(node.process.pid).children()
    # The warm parent is killed as well: what it leaves comes to the launcher itself.
    (warm_parent,) = launcher.children()
    warm_parent.kill()
    await watchdog.show(watchdog.round(3, "a"))
    await line_in(node.log(0, 3), "RANK")
    zombies = [each for each in node.descendants() if each.status() == psutil.STATUS_ZOMBIE]
    assert zombies == []


def is_waits(process: psutil.Process) -> bool:
    """Whether it is a worker that runs `waits.py`; what a worker before left may end while it is looked at."""
    try:
        words = process.cmdline()
    except psutil.NoSuchProcess:
        return False
    return any(word.endswith("waits.py") for word in words) and "-m" not in words


async def test_the_reason_of_a_failure_and_the_workers_error_become_the_termination_message(
    watchdog: FakeWatchdog, nodes: Nodes, tmp_path: Path
) -> None:
    log = tmp_path / "termination-log"
    log.write_text("of a container before")
    flags = ("--termination-log", str(log))
    node = await nodes.start("a", watchdog.endpoint, *WAITS, "fail", flags=flags)
    await watchdog.wait_for(Join)
    await watchdog.show(watchdog.round(1, "a"))
    await watchdog.wait_for(WorkerExited)
    await watchdog.show(watchdog.closed(2, succeeded=False))
    assert await node.wait() == 1
    reason, how, *error = log.read_text().splitlines()
    assert reason == watchdog.closed(2, succeeded=False).reason
    assert how == "rank 0 ended with exit code 3"
    assert error[-1] == "the loss is not a number"


async def test_a_success_leaves_no_message(watchdog: FakeWatchdog, nodes: Nodes, tmp_path: Path) -> None:
    log = tmp_path / "termination-log"
    log.touch()
    node = await nodes.start("a", watchdog.endpoint, *WAITS, flags=("--termination-log", str(log)))
    await watchdog.wait_for(Join)
    await watchdog.show(watchdog.closed(2, succeeded=True))
    assert await node.wait() == 0
    assert log.read_text() == ""


async def test_being_refused_and_being_started_wrongly_leave_a_message_too(nodes: Nodes, tmp_path: Path) -> None:
    log = tmp_path / "termination-log"
    log.touch()
    flags = ("--termination-log", str(log))
    async with FakeWatchdog(refuse="no job of this name") as watchdog:
        node = await nodes.start("a", watchdog.endpoint, *WAITS, flags=flags)
        assert await node.wait() == 1
        assert log.read_text() == "the watchdog refused this launcher: no job of this name"
        node = await nodes.start("a", watchdog.endpoint, *WAITS, flags=(*flags, "--nnodes", "none"))
        assert await node.wait() == 2
        assert log.read_text().startswith("--nnodes: 'none' is not accepted")


@pytest.mark.needs("namespaces")
async def test_a_run_directory_that_cannot_be_written_is_named(
    watchdog: FakeWatchdog, nodes: Nodes, tmp_path: Path
) -> None:
    flags = ("--run-dir", str(tmp_path / "elsewhere"))
    node = await nodes.start("a", watchdog.endpoint, *WAITS, flags=flags, confined=True)
    assert await node.wait() == 1
    said = await line_in(node.output, "holdfast launch:")
    assert said == f"holdfast launch: the directory {tmp_path / 'elsewhere'} cannot be made: Read-only file system"
    (tmp_path / "elsewhere").mkdir()
    node = await nodes.start("a", watchdog.endpoint, *WAITS, flags=flags, confined=True)
    assert await node.wait() == 1
    await line_in(node.output, f"{tmp_path / 'elsewhere' / 'tmp'} cannot be made: Read-only file system")
    assert "Traceback" not in node.output.read_text()
