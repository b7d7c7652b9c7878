"""Ranks of real gloo groups, forked from a server that has imported torch once."""

import multiprocessing
import tempfile
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any, Final, TypeVar

import torch
import torch.distributed as dist

PATIENCE_S: Final = 900.0

Given = TypeVar("Given")
Answer = TypeVar("Answer")

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["torch.distributed.checkpoint", "torch.distributed.tensor", "torch._dynamo", "saves.saving", "saves.loading"]
)


class RanksFailed(Exception):
    """A rank raised, died or took too long."""


@dataclass(frozen=True)
class Crew:
    """The ranks, as one of them sees them. Every method is a collective."""

    rank: int
    size: int

    def meet(self) -> None:
        dist.barrier()

    def worst(self, value: float) -> float:
        """The largest that any rank gives."""
        return self._reduced(value, dist.ReduceOp.MAX)

    def total(self, value: float) -> float:
        return self._reduced(value, dist.ReduceOp.SUM)

    def first(self, value: float) -> float:
        """What rank 0 gives."""
        return self._reduced(value if self.rank == 0 else 0.0, dist.ReduceOp.SUM)

    def _reduced(self, value: float, by: dist.ReduceOp.RedOpType) -> float:
        box = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(box, op=by)
        return box.item()


Program = Callable[[Crew, Given], Answer]


def run(program: Program[Given, Answer], given: Given, *, ranks: int) -> Answer:
    """What rank 0 answers, once all have. Raises RanksFailed."""
    answers = outcomes(program, given, ranks=ranks)
    if None in answers:
        raise RanksFailed(f"rank {answers.index(None)} of {ranks} died")
    first: Answer = answers[0]
    return first


def outcomes(program: Program[Given, Answer], given: Given, *, ranks: int) -> list[Any]:
    """What each rank answers, which may not be None: that is for one that died. Raises RanksFailed."""
    with tempfile.TemporaryDirectory() as folder:
        pipes = [_CONTEXT.Pipe(duplex=False) for _ in range(ranks)]
        processes = [
            _CONTEXT.Process(target=_live, args=(Crew(rank, ranks), folder, program, given, pipes[rank][1]))
            for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        for _, sender in pipes:
            sender.close()
        try:
            return [_hear(receiver) for receiver, _ in pipes]
        finally:
            _end(processes)


def _live(crew: Crew, folder: str, program: Program[Any, Any], given: object, answers: Connection) -> None:
    warnings.simplefilter("ignore")  # Those of stock torch.
    torch.set_num_threads(1)  # What torchrun sets where several ranks share a machine.
    store = dist.FileStore(f"{folder}/store", crew.size)
    dist.init_process_group(
        "gloo", store=store, rank=crew.rank, world_size=crew.size, timeout=timedelta(seconds=PATIENCE_S)
    )
    try:
        answers.send((program(crew, given), ""))
    except Exception:  # The parent says it.
        answers.send((None, traceback.format_exc()))
    dist.destroy_process_group()


def _hear(receiver: Connection) -> Any:
    try:
        answer, failure = receiver.recv() if receiver.poll(PATIENCE_S) else (None, "took too long")
    except EOFError:
        return None
    if failure:
        raise RanksFailed(failure)
    return answer


def _end(processes: Sequence[ForkServerProcess]) -> None:
    for process in processes:
        process.join(20)
        process.kill()
        process.join()
        process.close()
