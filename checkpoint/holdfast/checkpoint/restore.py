"""Going back to the newest checkpoint that every rank finds intact.

Nothing of the model is touched before all ranks have read and verified everything they need, so a damaged
checkpoint leaves no trace and the one before it is tried.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec
import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict

from holdfast.api.errors import Damaged, Unavailable
from holdfast.api.round import Tier
from holdfast.checkpoint import randomness
from holdfast.checkpoint.candidate import Candidate
from holdfast.checkpoint.council import Council
from holdfast.checkpoint.errors import Unfit
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.optimizerstate import make_room
from holdfast.checkpoint.shard import shard_of
from holdfast.checkpoint.state import SCHEDULER, TrainingState, data_name, random_prefix
from holdfast.checkpoint.stored import StoredCheckpoint


class _Finding(StrEnum):
    INTACT = "Intact"
    DAMAGED = "Damaged"
    UNAVAILABLE = "Unavailable"
    UNFIT = "Unfit"


class _Word(msgspec.Struct, frozen=True):
    """What one rank says of a candidate."""

    finding: _Finding
    reason: str = ""


_WORDS = msgspec.msgpack.Decoder(_Word)


@dataclass(frozen=True, slots=True)
class Position:
    """Where training goes on. `skipped` says which newer candidates were passed over, and why; `tier` from where
    it was restored, NONE where it was not; `healed` how many damaged blocks, over all ranks, were had elsewhere.

    `batches` is what each rank of this world has taken; the data has yet to pass over `to_drop` of them, which
    are none where it took its own state.
    `random` is the saved random state this rank follows, from a world of `saved_world_size`. It is for the
    caller to apply, last of all: opening the data and passing batches over may draw numbers as well.
    """

    step: int | None = None
    batches: int = 0
    to_drop: int = 0
    skipped: tuple[str, ...] = ()
    tier: Tier = Tier.NONE
    healed: int = 0
    saved_world_size: int = 0
    random: Mapping[str, torch.Tensor] = field(default_factory=dict)


@dataclass(slots=True)
class _Reading:
    """What a rank has read of a candidate, to be applied when all ranks have."""

    sharded: dict[str, Any]
    targets: list[torch.Tensor] = field(default_factory=list)
    sources: list[torch.Tensor] = field(default_factory=list)
    objects: list[tuple[tuple[str | int, ...], object]] = field(default_factory=list)
    scheduler: Any = None
    data: Any = None
    random: dict[str, torch.Tensor] = field(default_factory=dict)


class Restorer:
    """Reads candidates into one rank's training state."""

    def __init__(self, council: Council, state: TrainingState) -> None:
        self._council = council
        self._state = state

    def restore(self, candidates: Sequence[Candidate], *, skipped: Sequence[str]) -> Position:
        """Apply the first of `candidates` that is intact on every rank; step None when there is none.

        Collective; `candidates` are the same on all ranks. Raises, on every rank alike, Unfit when an intact one
        does not fit, and Unavailable when a rank cannot read one now: it is not given up for that.
        """
        passed_over = list(skipped)
        is_new = not self._state.optimizer.state
        for candidate in candidates:
            if is_new:
                self._state.optimizer.state.clear()
            taken = self._read(candidate)
            reason = self._agree(taken if isinstance(taken, _Word) else _Word(_Finding.INTACT))
            if reason is None and isinstance(taken, tuple):
                checkpoint, reading = taken
                self._apply(reading)
                return self._position(checkpoint.manifest, reading, passed_over, candidate.tier)
            passed_over.append(f"{candidate.name}: {reason}")
        if is_new:  # Reading has made a state, as after a first step.
            self._state.optimizer.state.clear()
        return Position(skipped=tuple(passed_over))

    def _position(self, found: Manifest, reading: _Reading, passed_over: Sequence[str], tier: Tier) -> Position:
        # All ranks together have taken this many; where it does not come out even, some are seen again.
        batches = found.batches * found.world_size // self._council.world_size
        return Position(
            step=found.step,
            batches=batches,
            to_drop=batches if reading.data is None else 0,
            skipped=tuple(passed_over),
            tier=tier,
            saved_world_size=found.world_size,
            random=reading.random,
        )

    def _read(self, candidate: Candidate) -> "tuple[StoredCheckpoint, _Reading] | _Word":
        try:
            checkpoint = candidate.open()
            reading = self._read_sharded(checkpoint)
            self._read_own(checkpoint, reading)
            checkpoint.verify_share(self._council.rank, self._council.world_size)
        except Damaged as damage:
            return _Word(_Finding.DAMAGED, str(damage))
        except Unfit as misfit:
            return _Word(_Finding.UNFIT, str(misfit))
        except OSError as error:
            return _Word(_Finding.UNAVAILABLE, f"{candidate.name} cannot be read: {error}")
        return checkpoint, reading

    def _agree(self, word: _Word) -> str | None:
        """None when every rank found the candidate intact, otherwise the first reason why not."""
        heard = [_WORDS.decode(each) for each in self._council.exchange(msgspec.msgpack.encode(word))]

        def reasons(finding: _Finding) -> list[str]:
            return [f"rank {rank}: {said.reason}" for rank, said in enumerate(heard) if said.finding is finding]

        for reason in reasons(_Finding.UNAVAILABLE):
            raise Unavailable(reason)
        for reason in reasons(_Finding.DAMAGED):
            return reason
        for reason in reasons(_Finding.UNFIT):
            raise Unfit(reason)
        return None

    def _read_sharded(self, checkpoint: StoredCheckpoint) -> _Reading:
        make_room(self._state.model, self._state.optimizer, checkpoint)
        reading = _Reading(sharded=self._state.sharded())
        wanted, paths = flatten_state_dict(reading.sharded)
        for name in checkpoint.in_file_order(wanted):
            target = wanted[name]
            if not isinstance(target, torch.Tensor):
                reading.objects.append((paths[name], checkpoint.read_object(name)))
                continue
            shard = shard_of(name, target)
            if shard is not None:
                _require_same(checkpoint, name, shard.local.dtype, shard.shape)
                reading.targets.append(shard.local)
                reading.sources.append(checkpoint.read_tensor(name, shard.box))
        return reading

    def _read_own(self, checkpoint: StoredCheckpoint, reading: _Reading) -> None:
        """The scheduler, and of what was saved per rank that of the rank this one follows."""
        rank = randomness.source_rank(self._council.rank, checkpoint.manifest.world_size)
        if self._state.scheduler is not None:
            reading.scheduler = checkpoint.read_object(SCHEDULER)
        if self._state.data is not None and checkpoint.names(data_name(rank)):
            reading.data = checkpoint.read_object(data_name(rank))
        prefix = random_prefix(rank)
        for name in checkpoint.names(prefix):
            reading.random[name.removeprefix(prefix)] = checkpoint.read_tensor(name)

    def _apply(self, reading: _Reading) -> None:
        state = self._state
        with torch.no_grad():
            torch._foreach_copy_(reading.targets, reading.sources)
        for path, value in reading.objects:
            _place(reading.sharded, path, value)
        state.load_sharded(reading.sharded)
        if state.scheduler is not None:
            state.scheduler.load_state_dict(reading.scheduler)
        if state.data is not None and reading.data is not None:
            state.data.load_state_dict(reading.data)


def _require_same(checkpoint: StoredCheckpoint, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    found = checkpoint.shape_of(name)
    if found != (dtype, shape):
        ours, theirs = f"{dtype}{list(shape)}", f"{found[0]}{list(found[1])}"
        raise Unfit(f"{name} is {ours} here and {theirs} in {checkpoint.name}")


def _place(nested: Any, path: tuple[str | int, ...], value: object) -> None:
    for step in path[:-1]:
        nested = nested[step]
    nested[path[-1]] = value
