"""Ranks that save a model of several blocks in one layout and restore it in another, or after damage."""

import gc
import hashlib
import multiprocessing
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from patience import patient
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from holdfast.api.control import Assignment
from holdfast.api.errors import HoldfastError
from holdfast.api.round import Endpoint, Restore
from holdfast.checkpoint import Checkpointer, Standalone
from holdfast.checkpoint.capture.savegroup import SaveGroup
from holdfast.checkpoint.capture.state import TrainingState
from holdfast.checkpoint.format.manifest import BLOCK_BYTES, hash_block
from holdfast.checkpoint.format.verifiedfile import Tally
from holdfast.checkpoint.restore.plan import Contents, Plan
from holdfast.checkpoint.restore.restore import Restorer
from holdfast.checkpoint.restore.stored import Candidate, StoredCheckpoint
from holdfast.checkpoint.storage.local import LocalStorage

PATIENCE_S = patient(60.0)
STEPS = 2
LAYOUTS = {"rows": Shard(0), "columns": Shard(1), "replicas": Replicate()}

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["holdfast.checkpoint", "torch.distributed.tensor", "torch._dynamo"])


@dataclass(frozen=True)
class Harm:
    """What stands in `file` of the directory from `offset` on; None: nothing does."""

    file: str
    offset: int
    content: bytes | None

    def done_to(self, intact: bytes) -> bytes:
        if self.content is None:
            return intact[: self.offset]
        return intact[: self.offset] + self.content + intact[self.offset + len(self.content) :]


@dataclass(frozen=True)
class Task:
    """Restore from `directory` into `layout`; damaged blocks may be had from the files of `pristine`. Ranks of the
    same number in `hosts` share memory (empty: all do).
    """

    directory: Path
    layout: str
    pristine: Path | None = None
    hosts: tuple[int, ...] = ()
    harms: tuple[Harm, ...] = ()


@dataclass(frozen=True)
class Answer:
    """`digest` is of the whole state, gathered, and the same on all ranks. `refusal`: the error, by its name.
    `unpacked`: the checkpoints whose objects were. `trials`: the answer for each of several restores.
    """

    step: int | None = None
    digest: str = ""
    skipped: tuple[str, ...] = ()
    healed: tuple[str, ...] = ()
    tally: Tally | None = None
    refusal: str = ""
    is_memory_kept: bool = False
    unpacked: tuple[str, ...] = ()
    trials: tuple["Answer", ...] = ()


class Library:
    """Blocks of intact files, by their hash."""

    def __init__(self, folder: Path) -> None:
        self._blocks = {}
        for path in folder.rglob("*.distcp"):
            content = path.read_bytes()
            for start in range(0, len(content), BLOCK_BYTES):
                block = content[start : start + BLOCK_BYTES]
                self._blocks[hash_block(block)] = block

    def fetch(self, block_hash: str) -> bytes | None:
        return self._blocks.get(block_hash)


def build(layout: str, world_size: int, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Weights that no layout divides evenly, one smaller and two larger than a block."""
    mesh = init_device_mesh("cpu", (world_size,))
    torch.manual_seed(seed)
    model = nn.Module()
    for name, shape in (("wide", (1030, 1031)), ("high", (2051, 770)), ("bias", (1031,))):
        placement = LAYOUTS[layout] if len(shape) > 1 or layout != "columns" else Shard(0)
        model.register_parameter(name, nn.Parameter(distribute_tensor(torch.randn(shape), mesh, [placement])))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)


def save(rank: int, world_size: int, task: Task) -> Answer:
    model, optimizer = build(task.layout, world_size, seed=1)
    checkpointer = Checkpointer(
        Standalone(str(task.directory)), model=model, optimizer=optimizer, every_steps=1, keep=STEPS
    )
    for step, _ in checkpointer.steps(range(STEPS)):
        for parameter in model.parameters():
            parameter.grad = parameter.detach() * step
        optimizer.step()
    checkpointer.close()
    return Answer(step=STEPS, digest=digest(model, optimizer))


def restore(rank: int, world_size: int, task: Task) -> Answer:
    model, optimizer = build(task.layout, world_size, seed=2)
    assignment = Assignment(
        job="",
        round=0,
        rank=rank,
        local_rank=rank,
        world_size=world_size,
        local_size=world_size,
        endpoint=Endpoint(host="", port=0),
        restore=Restore(),
        reason="",
    )
    state = TrainingState(model, optimizer, scheduler=None, data=None, extra={})
    restorer = Restorer(
        SaveGroup(assignment),
        state,
        blocks=Library(task.pristine) if task.pristine else None,
        host=str(task.hosts[rank]) if task.hosts else None,
    )
    storage = LocalStorage(task.directory)
    names = [name for name in sorted(storage.names(), reverse=True) if name.startswith("step-")]
    candidates = [Candidate(name, partial(StoredCheckpoint.open, storage, name)) for name in names]
    try:
        found = restorer.restore(candidates, skipped=())
    except HoldfastError as error:
        return Answer(refusal=f"{type(error).__name__}: {error}")
    return Answer(found.step, digest(model, optimizer), found.skipped, found.healed, found.tally)


def restore_uncollected(rank: int, world_size: int, task: Task) -> Answer:
    """As `restore`; says whether memory that the ranks share is still there before any garbage is collected."""
    gc.disable()
    answer = restore(rank, world_size, task)
    return replace(answer, is_memory_kept="/.holdfast-restore-" in Path("/proc/self/maps").read_text())


def restore_watched(rank: int, world_size: int, task: Task) -> Answer:
    """As `restore`; says what was unpacked on the way."""
    unpacked: list[str] = []
    unpack = Plan.unpack

    def watched(plan: Plan) -> Contents:
        unpacked.append(plan.checkpoint.name)
        return unpack(plan)

    with patch.object(Plan, "unpack", watched):
        answer = restore(rank, world_size, task)
    return replace(answer, unpacked=tuple(unpacked))


def restore_harmed(rank: int, world_size: int, task: Task) -> Answer:
    """As `restore`, once with each of the harms, of which nothing is left behind."""
    trials = []
    for harm in task.harms:
        path = task.directory / harm.file
        intact = path.read_bytes()
        dist.barrier()
        if rank == 0:
            path.write_bytes(harm.done_to(intact))
        dist.barrier()
        trials.append(restore(rank, world_size, task))
        dist.barrier()
        if rank == 0:
            path.write_bytes(intact)
        dist.barrier()
    return Answer(trials=tuple(trials))


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    found = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        state = optimizer.state[parameter]
        for tensor in (parameter, state["exp_avg"], state["exp_avg_sq"], state["step"]):
            whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            found.update(name.encode() + whole.detach().numpy().tobytes())
    return found.hexdigest()


def _live(
    program: Callable[[int, int, Task], Answer],
    rank: int,
    world_size: int,
    meeting: str,
    task: Task,
    answers: Connection,
) -> None:
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    store = dist.FileStore(meeting, world_size)
    patience = timedelta(seconds=PATIENCE_S)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=patience)
    answers.send(program(rank, world_size, task))
    dist.destroy_process_group()


def run_ranks(program: Callable[[int, int, Task], Answer], task: Task, world_size: int) -> Sequence[Answer]:
    with tempfile.TemporaryDirectory() as folder:
        pipes = [_CONTEXT.Pipe(duplex=False) for _ in range(world_size)]
        processes: list[Any] = [
            _CONTEXT.Process(target=_live, args=(program, rank, world_size, f"{folder}/store", task, pipe[1]))
            for rank, pipe in enumerate(pipes)
        ]
        for process in processes:
            process.start()
        for _, sender in pipes:
            sender.close()
        try:
            return [receiver.recv() for receiver, _ in pipes if receiver.poll(PATIENCE_S)]
        finally:
            for process in processes:
                process.join(patient(10))
                process.kill()
                process.join()
                process.close()
            for receiver, _ in pipes:
                receiver.close()
