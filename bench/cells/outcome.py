"""One cell under one keeper: trained undisturbed, and cut and gone on with, each life in processes of its own."""

import contextlib
import json
import multiprocessing
import os
import tempfile
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import torch
import torch._dynamo  # once, and not in each process that compiles
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from cells.axes import Cell
from cells.keepers import KEEPERS, quiet
from cells.training import BATCHES, CUT, EARLIER, EPOCHS, Script, batches, script_of

STEPS: Final = BATCHES * EPOCHS
PATIENCE_S: Final = 300.0
SILENT: Final = "a process ended, or hung, without a word"

EXACT, LOST, REFUSED, IMPOSSIBLE = "exact", "lost", "refused", "torch cannot"


@dataclass(frozen=True)
class Life:
    """What one rank's process saw: each step's loss, what it had when it began and at the end, or why it ended."""

    losses: dict[int, str] = field(default_factory=dict)
    restored: dict[str, str] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)
    generators: dict[str, str] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True)
class Outcome:
    """`says` is one of EXACT, LOST (nothing was said), REFUSED and IMPOSSIBLE; `why` the names that differ, or the
    error.
    """

    cell: Cell
    keeper: str
    says: str
    why: str = ""

    def row(self) -> str:
        return json.dumps({**asdict(self.cell), "keeper": self.keeper, "says": self.says, "why": self.why})


def undisturbed(cell: Cell) -> list[Life]:
    """Of each rank."""
    return _lives(cell, cell.world_size, "", Path(), STEPS)


def outcome(cell: Cell, keeper: str, whole: Sequence[Life]) -> Outcome:
    """What `keeper` makes of a run that is cut."""
    if error := next((each.error for each in whole if each.error), ""):
        return Outcome(cell, keeper, IMPOSSIBLE, error)
    with tempfile.TemporaryDirectory() as folder:
        lives: list[list[Life]] = []
        cuts = (EARLIER, CUT) if cell.life == "cut twice" else (CUT,)
        for until in (*cuts, STEPS):
            world = cell.next_world_size if until == STEPS else cell.world_size
            lives.append(_lives(cell, world, keeper, Path(folder), until))
            if error := next((each.error for each in lives[-1] if each.error), ""):
                when = f"saving at step {until}" if until != STEPS else "going on"
                return Outcome(cell, keeper, REFUSED, f"{when}: {error}")
    *_, before, last = lives
    differing: list[str] = []
    if cell.world_size == cell.next_world_size:
        for rank, own in enumerate(whole):
            seen: dict[int, str] = {}
            for life in lives:
                seen |= life[rank].losses
            differing += [f"loss of step {step}" for step in own.losses if own.losses[step] != seen.get(step)]
            differing += _differing(own.ended, last[rank].ended)
            differing += _differing(own.generators, last[rank].generators)
    else:  # Sums over another number of ranks have other last bits: what was restored is looked at.
        for own in last:
            differing += _differing(before[0].ended, own.restored)
            differing += [
                f"step {step} not trained" for step in range(CUT + 1, STEPS + 1) if step not in own.losses
            ]
    names = list(dict.fromkeys(differing))
    # Names tell more than the losses that follow from them.
    told = [name for name in names if not name.startswith("loss")] or names
    shown = ", ".join(told[:4]) + (f" and {len(told) - 4} more" if len(told) > 4 else "")
    return Outcome(cell, keeper, LOST if names else EXACT, shown)


def _differing(one: dict[str, str], other: dict[str, str]) -> list[str]:
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


@dataclass(frozen=True)
class _Part:
    """One rank's in a life: kept by `keeper` (empty: by nobody) in `folder`, until that step."""

    cell: Cell
    world_size: int
    rank: int
    keeper: str
    folder: Path
    until: int
    meets_at: Path


def _lives(cell: Cell, world: int, keeper: str, folder: Path, until: int) -> list[Life]:
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as meeting:
        ends = [context.Pipe(duplex=False) for _ in range(world)]
        parts = [_Part(cell, world, rank, keeper, folder, until, Path(meeting) / "store") for rank in range(world)]
        ranks = [
            context.Process(target=_live, args=(part, theirs))
            for part, (_, theirs) in zip(parts, ends, strict=True)
        ]
        for each in ranks:
            each.start()
        for _, theirs in ends:
            theirs.close()
        found = [_heard(ours) for ours, _ in ends]
        for each in ranks:
            each.join(5)
            each.kill()
        return found


def _heard(ours: Connection) -> Life:
    with contextlib.suppress(EOFError):
        if ours.poll(PATIENCE_S):
            life: Life = ours.recv()
            return life
    return Life(error=SILENT)


def _live(part: _Part, told: Connection) -> None:
    quiet()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    try:
        if part.cell.world_size > 1:
            store, world = f"file://{part.meets_at}", part.world_size
            dist.init_process_group("gloo", init_method=store, rank=part.rank, world_size=world)
        life = _trained(script_of(part.cell), part.keeper, part.folder, part.until)
    except BaseException as error:
        life = Life(error=_in_words(error))
    told.send(life)
    os._exit(0)


def _in_words(error: BaseException) -> str:
    """One line, and where it was raised."""
    if isinstance(error, CheckpointException):  # of the first rank that failed
        error = next(iter(error.failures.values()))[0]
    where = traceback.extract_tb(error.__traceback__)[-1:]
    lines = str(error).splitlines() or [""]
    place = "".join(f" ({Path(each.filename).name}:{each.lineno})" for each in where)
    return f"{type(error).__name__}: {lines[0]}{place}"


def _trained(script: Script, keeper: str, folder: Path, until: int) -> Life:
    life = Life()
    steps = (
        KEEPERS[keeper]().steps(script, folder, until)
        if keeper
        else ((step, batch) for _, step, batch in batches(script))
    )
    for step, batch in steps:
        if not life.losses:
            life.restored.update(script.digests())
        script.freezes(step)
        script.train(step, batch)
        life.losses[step] = script.losses[-1]
    life.ended.update(script.digests())
    life.generators.update(script.generators())
    return life
