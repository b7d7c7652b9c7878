"""In which tensors the checkpoints of two runs differ, step by step. Most are found equal by the hashes alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from torch import Tensor

from holdfast.checkpoint.capture.dataparts import LOADERS
from holdfast.checkpoint.capture.state import Generator, generator_of
from holdfast.checkpoint.convert.comparison import Difference, compare
from holdfast.checkpoint.convert.conversion import HoldfastSource
from holdfast.checkpoint.format.index import StoredTensor
from holdfast.checkpoint.format.manifest import BLOCK_BYTES, FileRecord
from holdfast.checkpoint.restore.stored import StoredCheckpoint
from holdfast.checkpoint.runs.recorded import RecordedRun


class Drawn(StrEnum):
    """Whether a run took numbers of a generator while it trained."""

    YES = "drawn from"
    NO = "not drawn from"
    UNKNOWN = "unknown"  # no run has two states of it that could be compared


@dataclass(frozen=True, slots=True)
class Apart:
    """A generator that is not in the same state in the two runs, after `step` for the first time."""

    generator: Generator
    step: int
    drawn: Drawn


@dataclass(frozen=True, slots=True)
class States:
    """Of the steps of which both runs have a checkpoint, `common`, lowest first: `equals` are those before the
    first that differs, and `differs` is that one, None: none does. `differences` are of that one, and
    `only_in_one` are names that the other does not have.

    `generators` are those that differ up to that step. One that neither run drew from is not a difference: its
    state was computed by nobody.
    """

    common: tuple[int, ...]
    equals: tuple[int, ...] = ()
    differs: int | None = None
    differences: tuple[Difference, ...] = ()
    only_in_one: tuple[str, ...] = ()
    generators: tuple[Apart, ...] = ()

    @property
    def equal(self) -> int | None:
        """The last step that is known to be equal before the first that is not; None: none is."""
        return self.equals[-1] if self.equals else None

    @property
    def names(self) -> tuple[str, ...]:
        """Everything that differs, the model's first."""
        names = [*(each.name for each in self.differences), *self.only_in_one]
        return tuple(sorted(names, key=lambda name: not name.startswith("model.")))


def compare_states(a: RecordedRun, b: RecordedRun) -> States:
    """Raises Damaged when a checkpoint is not whole, Unfit when an object in it needs code, OSError."""
    ours, theirs = a.by_step, b.by_step
    common = tuple(sorted(ours.keys() & theirs.keys()))
    equals: list[int] = []
    generators: dict[Generator, Apart] = {}
    for step in common:
        first = HoldfastSource(a.storage, ours[step].name)
        second = HoldfastSource(b.storage, theirs[step].name)
        found = compare(first, second, are_equal=partial(same_blocks, a=first, b=second))
        for name in (*(each.name for each in found.differences), *found.only_in_a, *found.only_in_b):
            generator = generator_of(name)
            if generator is not None and generator not in generators:
                generators[generator] = Apart(generator, step, drawn(generator, a, b))
        idle = {each.generator for each in generators.values() if each.drawn is Drawn.NO}
        differences = tuple(each for each in found.differences if generator_of(each.name) not in idle)
        only = tuple(name for name in (*found.only_in_a, *found.only_in_b) if generator_of(name) not in idle)
        if differences or only:
            return States(common, tuple(equals), step, differences, only, tuple(generators.values()))
        equals.append(step)
    return States(common, tuple(equals), generators=tuple(generators.values()))


def drawn(generator: Generator, *runs: RecordedRun) -> Drawn:
    """Whether one of the runs drew from it: whether all the states of it that a run has saved are the same. Raises
    Damaged, OSError.
    """
    if generator.source.startswith(LOADERS):
        return Drawn.YES  # a loader that was given one draws from it
    is_known = False
    for run in runs:
        seen: dict[str, Tensor] = {}
        for each in run.line:
            stored = StoredCheckpoint.open(run.storage, each.name)
            for name in stored.names():
                if generator_of(name) != generator:
                    continue
                source, state = name.rpartition(".")[2], stored.read_tensor(name)
                if source not in seen:
                    seen[source] = state
                elif _bytes(seen[source]) != _bytes(state):
                    return Drawn.YES
                else:
                    is_known = True
    return Drawn.NO if is_known else Drawn.UNKNOWN


def _bytes(state: Tensor) -> bytes:
    return state.numpy().tobytes()


def same_blocks(name: str, a: HoldfastSource, b: HoldfastSource) -> bool:
    """Whether the hashes alone prove that `name` is the same in both: it lies at the same places, in blocks of the
    same hashes. False proves nothing.
    """
    ours, theirs = a.stored.index.entries[name], b.stored.index.entries[name]
    if ours != theirs:
        return False
    spans = ours.chunks if isinstance(ours, StoredTensor) else (ours,)
    files_a, files_b = a.stored.manifest.files, b.stored.manifest.files
    return all(
        _hashes(files_a[each.file], each.start, each.length_bytes)
        == _hashes(files_b[each.file], each.start, each.length_bytes)
        for each in spans
    )


def _hashes(record: FileRecord, start: int, length_bytes: int) -> Sequence[str]:
    return record.blocks[start // BLOCK_BYTES : -(-(start + length_bytes) // BLOCK_BYTES)]
