"""Processes that are ranks of one gloo world after the other, of any size up to theirs."""

import itertools
import multiprocessing
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from patience import patient

PATIENCE_S = patient(90.0)

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "holdfast.checkpoint.checkpointer",
        "torch.distributed.fsdp",
        "torch.distributed.tensor.parallel",
        "torch._dynamo",
    ]
)

Act = Callable[[Any], Any]
"""What a rank does with what it is given, inside an initialised world; what it answers can be pickled."""


class Troupe:
    """`play` runs an act on that many ranks, in a world of their own, and returns what each answered.

    Raises AssertionError with the trace of the first rank that raised.
    """

    def __init__(self, size: int, folder: Path) -> None:
        self._folder = folder
        self._worlds = itertools.count()
        self._pipes = []
        self._processes = []
        for _ in range(size):
            ours, theirs = _CONTEXT.Pipe()
            process = _CONTEXT.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def play(self, act: Act, given: object, *, ranks: int) -> list[Any]:
        meeting = str(self._folder / f"world-{next(self._worlds)}")
        for rank, pipe in enumerate(self._pipes[:ranks]):
            pipe.send((act, given, rank, ranks, meeting))
        answers = [self._hear(rank) for rank in range(ranks)]
        for rank, (_, failure) in enumerate(answers):
            assert not failure, f"rank {rank} of {ranks}: {failure}"
        return [answer for answer, _ in answers]

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(patient(10))
            process.kill()
            process.join()
            process.close()

    def _hear(self, rank: int) -> tuple[Any, str]:
        if not self._pipes[rank].poll(PATIENCE_S):
            return None, "took too long"
        try:
            heard: tuple[Any, str] = self._pipes[rank].recv()
        except EOFError:
            return None, "died"
        return heard


def _serve(pipe: Connection) -> None:
    torch.set_num_threads(1)
    while True:
        try:
            act, given, rank, ranks, meeting = pipe.recv()
        except EOFError:
            return
        store = dist.FileStore(meeting, ranks)
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=PATIENCE_S)
        )
        dist.barrier()  # One that has nothing to do must not leave before the others have met it.
        try:
            pipe.send((act(given), ""))
        except Exception:
            pipe.send((None, traceback.format_exc()))
        dist.destroy_process_group()
