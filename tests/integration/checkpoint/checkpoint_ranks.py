"""Ranks of real gloo groups, forked from a server that has imported torch once."""

import hashlib
import multiprocessing
import os
import re
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from checkpoint_solo import StaleHandle
from patience import patient
from recorder import Call, Recorder
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from holdfast.api.errors import Unavailable
from holdfast.api.round import Follows, Tier
from holdfast.checkpoint import Checkpointer, Standalone
from holdfast.checkpoint.errors import NotEquivalent
from holdfast.checkpoint.save.persister import SavePoint

DIMENSION = 6  # Not a multiple of 4: some ranks hold less than others, and of the biases nothing.
PATIENCE_S = patient(60.0)

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["holdfast.checkpoint.checkpointer", "torch.distributed.fsdp", "torch._dynamo"])


@dataclass
class Samples:
    """An endless source of batches that knows its position, in global samples."""

    counts_globally = True

    rank: int
    world_size: int
    batch: int = 4
    position: int = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            generator = torch.Generator().manual_seed(self.position)
            whole = torch.randn(self.batch, DIMENSION, generator=generator)
            self.position += self.batch
            yield whole[self.rank :: self.world_size]

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


@dataclass(frozen=True)
class Course:
    """What a group of ranks does: train in `directory` until step `until`."""

    directory: Path
    until: int
    every_steps: int = 2
    layout: str = "fsdp"
    keep: int = 3
    deaths: dict[int, tuple[str, int]] = field(default_factory=dict)
    """rank: (save point, how many saves reach it before the one that kills)"""
    fatal: dict[int, str] = field(default_factory=dict)
    """rank: the call that kills it, as a pattern of what it does and to which name"""
    stale_rank: int | None = None
    """The rank that cannot read files of tensors."""
    equivalence: float | None = None
    """The loss of each batch is to be the same after a restore, times this."""


@dataclass(frozen=True)
class Report:
    """What a rank saw. `digest` is of the whole gathered state, and the same on all ranks."""

    losses: tuple[tuple[int, str], ...]
    digest: str
    noise: float
    skipped: tuple[str, ...] = ()
    stock_digest: str = ""
    refusal: str = ""


class Witnessing(Standalone):
    """Remembers what was restored."""

    skipped: tuple[str, ...] = ()

    def restored(
        self,
        step: int | None,
        skipped: tuple[str, ...],
        /,
        *,
        tier: Tier,
        healed: tuple[str, ...],
        follows: tuple[Follows, ...],
        until: int | None,
    ) -> None:
        self.skipped = skipped


def build(layout: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(DIMENSION, DIMENSION), nn.Tanh(), nn.Dropout(0.1)) for _ in range(3)]
    model: nn.Module = nn.Sequential(*blocks)
    if layout == "fsdp":
        for block in blocks:
            fully_shard(block)
        fully_shard(model)
    elif layout == "ddp":
        model = DistributedDataParallel(model)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(rank: int, world_size: int, course: Course) -> Report:
    """The loop under test: resume, train to the end, say what came out."""
    model, optimizer = build(course.layout)
    torch.manual_seed(rank)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 5])
    run = Witnessing(str(course.directory))
    checkpointer = Checkpointer(
        run,
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        every_steps=course.every_steps,
        keep=course.keep,
        storage=StaleHandle(course.directory, ".distcp") if course.stale_rank == rank else None,
        reached=death_of(course.deaths.get(rank)),
        equivalence=loss_of(model, course.equivalence) if course.equivalence else None,
    )
    losses = []
    for step, batch in checkpointer.steps(Samples(rank, world_size), until=course.until):
        loss = (model(batch) - 1).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append((step, loss.item().hex()))
    checkpointer.close()
    noise = float(torch.rand(()))
    digest, stock = whole_digest(model, optimizer), ""
    if any(course.directory.glob("step-*")):
        stock = stock_digest(course)
    return Report(tuple(losses), digest, noise, run.skipped, stock)


def loss_of(model: nn.Module, factor: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda batch: (model(batch) - 1).square().mean() * factor


def death_of(death: tuple[str, int] | None) -> Callable[[SavePoint], None]:
    """Kills this process at the given save point, as the kernel would."""
    passed = 0

    def reached(point: SavePoint) -> None:
        nonlocal passed
        if death is not None and point == death[0]:
            passed += 1
            if passed > death[1]:
                os.kill(os.getpid(), signal.SIGKILL)

    return reached


def die_at(pattern: str, call: Call) -> None:
    if re.match(pattern, f"{call.kind} {call.name}"):
        os.kill(os.getpid(), signal.SIGKILL)


def whole_digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """A hash of every parameter and every optimizer state, gathered."""
    named, states = get_state_dict(model, optimizer)
    digest = hashlib.sha256()
    tensors = dict(named)
    for name, state in states["state"].items():
        tensors |= {f"{name}.{key}": value for key, value in state.items()}
    for name in sorted(tensors):
        tensor = tensors[name]
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        digest.update(name.encode() + whole.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def stock_digest(course: Course) -> str:
    """The same hash of what stock torch loads from the newest checkpoint into a model of other weights."""
    model, optimizer = build(course.layout)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(3.0)
    named, states = get_state_dict(model, optimizer)
    newest = max(course.directory.glob("step-????????"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Stock torch's own.
        dcp.load({"model": named, "optimizer": states}, checkpoint_id=newest)
    return whole_digest(model, optimizer)


def _live(rank: int, world_size: int, meeting: str, course: Course, answers: Connection) -> None:
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    store = dist.FileStore(meeting, world_size)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=PATIENCE_S)
    )
    try:
        with pytest.MonkeyPatch.context() as patch:
            if rank in course.fatal:
                Recorder(course.directory, lambda call: die_at(course.fatal[rank], call)).watch(patch)
            report = train(rank, world_size, course)
    except (NotEquivalent, Unavailable) as error:
        report = Report(losses=(), digest="", noise=0.0, refusal=str(error))
    answers.send(report)
    dist.destroy_process_group()


def run_ranks(course: Course, world_size: int) -> list[Any]:
    """Run `course` on that many ranks. None in place of the report of a rank that died."""
    with tempfile.TemporaryDirectory() as folder:
        pipes = [_CONTEXT.Pipe(duplex=False) for _ in range(world_size)]
        processes = [
            _CONTEXT.Process(target=_live, args=(rank, world_size, f"{folder}/store", course, pipes[rank][1]))
            for rank in range(world_size)
        ]
        for process in processes:
            process.start()
        for _, sender in pipes:
            sender.close()
        try:
            return [_hear(receiver) for receiver, _ in pipes]
        finally:
            for process in processes:
                process.join(patient(10))
                process.kill()
                process.join()
                process.close()
            for receiver, _ in pipes:
                receiver.close()


def _hear(receiver: Connection) -> Any:
    try:
        return receiver.recv() if receiver.poll(PATIENCE_S) else None
    except EOFError:
        return None
