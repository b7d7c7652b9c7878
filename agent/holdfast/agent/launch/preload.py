"""What the warm parent imports before it forks workers, and the check that it may fork at all.

Importing torch costs a worker one to three seconds, and the first optimizer it constructs about as much again
because `torch.optim` imports its compiler parts only then. Both are paid once here. Nothing may touch CUDA (a
CUDA context does not survive a fork) and no thread may be left running (a lock it holds would stay locked in
every child).
"""

import gc
import importlib
import logging
from pathlib import Path

log = logging.getLogger(__name__)

MODULES = (
    "numpy",
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    "torch.utils.data",
    "torch.distributed.fsdp",
    "torch.distributed.device_mesh",
    "torch.distributed.checkpoint",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.elastic.multiprocessing.errors",
    "holdfast.trainer",
    "holdfast.checkpoint",
)


def preload() -> str:
    """Import what workers need. Returns why this process must not fork warm workers, or nothing.

    A module that cannot be imported is left to the workers: the script that needs it says so best.
    """
    missing = [name for name in MODULES if not _imported(name)]
    if "torch" in missing:
        return "torch cannot be imported"
    try:
        _touch_optimizer()
    except Exception as error:  # Half of a compiler is loaded now; workers do better with none of it.
        return f"torch cannot make an optimizer here: {error!r}"
    threads = thread_count()
    if threads != 1:
        return f"{threads} threads run after the imports, and only a single-threaded process can fork safely"
    # What is loaded now lives as long as the process: the collector need not visit, and so copy, its pages.
    gc.collect()
    gc.freeze()
    return ""


def _imported(name: str) -> bool:
    try:
        importlib.import_module(name)
    except Exception as error:  # a broken optional package must not take every worker's start with it
        log.info("not preloaded module=%s error=%r", name, error)
        return False
    return True


def _touch_optimizer() -> None:
    import torch

    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1).step()


def thread_count() -> int:
    """How many threads the kernel counts in this process.

    Source: the `Threads` line of /proc/pid/status, https://man7.org/linux/man-pages/man5/proc_pid_status.5.html
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("Threads:"):
            return int(line.split()[1])
    return -1
