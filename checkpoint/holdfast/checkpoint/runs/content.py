"""In which tensors the checkpoints of two runs differ, step by step. Most are found equal by the hashes alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from holdfast.checkpoint.convert.comparison import Difference, compare
from holdfast.checkpoint.convert.conversion import HoldfastSource
from holdfast.checkpoint.format.index import StoredTensor
from holdfast.checkpoint.format.manifest import BLOCK_BYTES, FileRecord
from holdfast.checkpoint.runs.recorded import RecordedRun


@dataclass(frozen=True, slots=True)
class States:
    """Of the steps of which both runs have a checkpoint, `common`, lowest first: `equals` are those before the
    first that differs, and `differs` is that one, None: none does. `differences` are of that one, and
    `only_in_one` are names that the other does not have.
    """

    common: tuple[int, ...]
    equals: tuple[int, ...] = ()
    differs: int | None = None
    differences: tuple[Difference, ...] = ()
    only_in_one: tuple[str, ...] = ()

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
    for step in common:
        first = HoldfastSource(a.storage, ours[step].name)
        second = HoldfastSource(b.storage, theirs[step].name)
        found = compare(first, second, are_equal=partial(same_blocks, a=first, b=second))
        if not found.is_equal:
            only = (*found.only_in_a, *found.only_in_b)
            return States(common, tuple(equals), step, found.differences, only)
        equals.append(step)
    return States(common, tuple(equals))


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
