"""`holdfast run` as a user starts it: a process, its output, and everything below it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from patience import patient

from holdfast.cli.embedded.childprocess import descendants

HOLDFAST = (sys.executable, "-c", "from holdfast.cli.main import main; main()")
PATIENCE_S = patient(90.0)
# The injector waits 30 s for whom a fault is to happen to and for what comes of the one before. A person wants to
# hear soon that there is none; a test on a slow machine, that what comes late was waited for.
INJECTS_S = patient(30.0)
PATIENTLY = f"from holdfast.cli.embedded import injector; injector.NOTICE_S = injector.WHOM_S = {INJECTS_S}"
RUN = (sys.executable, "-c", f"{PATIENTLY}; {HOLDFAST[-1]}")

TOY = """
import sys, time
import torch, torch.distributed as dist
from holdfast.trainer import Run

run = Run()

def train(assignment):
    for step in range(1, int(sys.argv[1]) + 1):
        dist.all_reduce(torch.ones(1))
        time.sleep(0.02)
        run.step(step, loss=1.0 / step)

run.enter(train)
"""


def job_file(
    folder: Path,
    *,
    script: str,
    words: Sequence[str] = (),
    nodes: str,
    startup: str = "{preflight: none}",
    more: str = "",
) -> Path:
    """A job file and its script in `folder`. `more` are further lines of the spec, indented by two.

    Without a preflight, which costs each test seconds; a `startup` of "{}" is what a user gets unasked.
    """
    (folder / "train.py").write_text(script)
    file = folder / "job.yaml"
    file.write_text(
        "apiVersion: holdfast.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: toy}\nspec:\n"
        f"  entrypoint: {['train.py', *words]}\n  nodes: {nodes}\n  startup: {startup}\n{more}"
    )
    return file


def holdfast(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    """Run one command to its end."""
    return subprocess.run(
        [*_begun(arguments), *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def _begun(arguments: Sequence[str | Path]) -> Sequence[str]:
    return RUN if arguments[0] == "run" else HOLDFAST


@contextmanager
def running(*arguments: str | Path) -> Iterator["subprocess.Popen[str]"]:
    """A run in the background; whatever happens, it is gone afterwards."""
    process = subprocess.Popen(
        [*_begun(arguments), *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=PATIENCE_S)


def wait_until(condition: Callable[[], bool], what: str, within_s: float = PATIENCE_S) -> None:
    """Look until `condition` holds; fails by saying `what` did not come.

    A look that starts a command costs a processor a tenth of a second: most of the time is left to what is
    waited for.
    """
    deadline = time.monotonic() + within_s
    looked_at = time.monotonic()
    while not condition():
        now = time.monotonic()
        assert now < deadline, f"waited {within_s} s for {what}"
        time.sleep(max(0.05, min(1.0, 4.0 * (now - looked_at))))
        looked_at = time.monotonic()


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def family(process: "subprocess.Popen[str]") -> list[int]:
    """Everything a run has started, down to the workers."""
    return descendants(process.pid)


def assert_nothing_is_left(pids: Sequence[int]) -> None:
    """Every one of `pids` ends."""
    wait_until(lambda: not any(map(is_alive, pids)), f"the end of {pids}")


def interrupt(process: "subprocess.Popen[str]") -> str:
    """Ctrl-C; returns what was written to the end."""
    os.kill(process.pid, signal.SIGINT)
    return process.communicate(timeout=patient(30))[0]
