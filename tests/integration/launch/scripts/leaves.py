"""A worker that ends with zero in the way it is told; only `returns` has trained to its end."""

import os
import signal
import sys
import threading

from holdfast.api.control import Assignment
from holdfast.trainer import Run

how = sys.argv[1]
told = threading.Event()


def leave(*_: object) -> None:
    sys.exit(0)


def wait_for_signal() -> None:
    print(f"trains pid {os.getpid()}", flush=True)
    while not told.wait(0.01):
        pass


def end_process() -> None:
    signal.sigwait({signal.SIGTERM})
    os._exit(0)


def train(part: Assignment) -> None:
    if how == "finally":
        try:
            raise ValueError("the loss is not a number")
        finally:
            sys.exit(0)
    if how != "returns":
        wait_for_signal()


if how == "thread":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=end_process, daemon=True).start()
elif how == "graceful":
    signal.signal(signal.SIGTERM, lambda *_: told.set())
else:
    signal.signal(signal.SIGTERM, leave)
if how == "unmodified":
    wait_for_signal()
else:
    Run().enter(train)
