"""Stock torchrun with our backend and the real watchdog: nothing submitted, nothing changed in the script."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from patience import patient

pytestmark = pytest.mark.long

TORCHRUN = Path(sys.executable).with_name("torchrun")
PATIENCE_S = patient(90.0)

SCRIPT = """
import os, sys, time
import torch, torch.distributed as dist

dist.init_process_group("gloo")
rank, steps = dist.get_rank(), sys.argv[1]
done = int(open(steps).read() or 0) if os.path.exists(steps) else 0
for step in range(done + 1, 61):
    total = torch.ones(1)
    dist.all_reduce(total)
    time.sleep(0.02)
    if rank == 0:
        with open(steps + ".new", "w") as file:
            file.write(str(step))
        os.replace(steps + ".new", steps)
        print("step", step, "world", int(total), flush=True)
    elif step == done + 1:
        print("my pid", os.getpid(), flush=True)
    while step == 30 and not os.path.exists(steps + ".go"):
        time.sleep(0.02)
dist.destroy_process_group()
"""


def wait_for(what: str, seen: Callable[[], object]) -> object:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if found := seen():
            return found
        time.sleep(0.05)
    raise AssertionError(f"waited {PATIENCE_S:.0f} s for {what}")


@pytest.fixture
def watchdog(tmp_path: Path) -> Iterator[str]:
    """A running watchdog's host:port; its token is in tmp_path/token."""
    command = [sys.executable, "-m", "holdfast.watchdog", "--listen", "127.0.0.1:0"]
    command += ["--store", str(tmp_path / "watchdog.db"), "--token-file", str(tmp_path / "token")]
    process = subprocess.Popen(command)
    found = tmp_path / "watchdog.json"
    try:
        wait_for("the watchdog", found.exists)
        where = json.loads(found.read_text())
        yield f"{where['host']}:{where['port']}"
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


@pytest.mark.timeout(270)
def test_two_stock_torchruns_bring_their_own_job_and_heal_a_killed_worker(tmp_path: Path, watchdog: str) -> None:
    script, steps = tmp_path / "train.py", tmp_path / "steps"
    script.write_text(SCRIPT)
    logs = [tmp_path / "a.log", tmp_path / "b.log"]
    environment = {**os.environ, "HOLDFAST_TOKEN_FILE": str(tmp_path / "token"), "OMP_NUM_THREADS": "1"}
    command = [TORCHRUN, "--rdzv-backend=holdfast", f"--rdzv-endpoint={watchdog}", "--rdzv-id=team/stock"]
    command += ["--nnodes=2:2", "--nproc-per-node=1", script, steps]
    nodes = []
    try:
        for log in logs:
            with log.open("wb") as output:
                nodes.append(subprocess.Popen(command, stdout=output, stderr=output, env=environment))

        def worker() -> int:
            shown = "".join(log.read_text() for log in logs)
            return next((int(line.split("my pid ")[1]) for line in shown.splitlines() if "my pid " in line), 0)

        victim = wait_for("the second rank's first step", worker)
        assert isinstance(victim, int)
        os.kill(victim, signal.SIGKILL)
        (tmp_path / "steps.go").touch()  # Until here nobody could come to the end.
        codes = [node.wait(PATIENCE_S) for node in nodes]
    finally:
        for node in nodes:
            node.kill()
            node.wait()
    told = "".join(log.read_text() for log in logs)
    assert codes == [0, 0], told[-3000:]
    assert steps.read_text() == "60"
    assert told.count("my pid ") == 2, "the killed rank started anew, once"
    assert "step 60 world 2" in told
