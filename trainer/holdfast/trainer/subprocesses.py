"""What a training function leaves of processes beside it, once its round is over: workers of its loaders, and the
way that it said processes are to be started.

A loader ends its workers when its iterator is collected, and asks them first. In a cycle their queues may be gone
by then, so that nobody answers, and it waits its whole patience for each. What is collected between two rounds is
of no use any more: there it does not wait. Source: `_shutdown_workers`,
https://github.com/pytorch/pytorch/blob/main/torch/utils/data/dataloader.py
"""

import multiprocessing
import sys
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = "MP_STATUS_CHECK_INTERVAL"
"""Of torch's loaders and of torchdata's, in seconds: how long each worker is waited for, before it is terminated.
"""


@contextmanager
def start_method_kept() -> Iterator[None]:
    """While the `with` block runs, the start method of processes may be set, as if for the first time; then it is
    what it was.
    """
    before = multiprocessing.get_start_method(allow_none=True)
    try:
        yield
    finally:
        if multiprocessing.get_start_method(allow_none=True) != before:
            multiprocessing.set_start_method(before, force=True)  # None: none was set


@contextmanager
def loaders_end_at_once() -> Iterator[None]:
    """While the `with` block runs, loaders that are collected end their workers without waiting for them."""
    torch_loaders = sys.modules.get("torch.utils.data._utils")
    patience = getattr(torch_loaders, PATIENCE, None)
    if torch_loaders is None or patience is None:
        yield
        return
    setattr(torch_loaders, PATIENCE, 0.0)
    try:
        yield
    finally:
        setattr(torch_loaders, PATIENCE, patience)
