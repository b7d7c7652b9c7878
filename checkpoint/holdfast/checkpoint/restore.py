"""Going back to the newest candidate that every rank finds intact.

Bytes go straight from verified blocks into the live parameters, so a candidate that proves damaged halfway has
been written over them. That costs nothing while there is a next one, which overwrites everything; when there is
none, the round ends: nobody trains on from what is half of two states.
"""

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

import msgspec
import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict

from holdfast.api.errors import Damaged, Unavailable
from holdfast.api.round import Tier
from holdfast.checkpoint import randomness
from holdfast.checkpoint.blockpool import host_name
from holdfast.checkpoint.candidate import Candidate
from holdfast.checkpoint.council import Council
from holdfast.checkpoint.duties import Demand
from holdfast.checkpoint.errors import NothingToRestore, Unfit
from holdfast.checkpoint.fitting import Fitting
from holdfast.checkpoint.index import Box
from holdfast.checkpoint.optimizerstate import make_room
from holdfast.checkpoint.reading import read_together
from holdfast.checkpoint.shard import shard_of
from holdfast.checkpoint.state import TrainingState, data_name, random_prefix
from holdfast.checkpoint.stored import StoredCheckpoint
from holdfast.checkpoint.target import Target
from holdfast.checkpoint.unpacking import Unpacker
from holdfast.checkpoint.verified import BlockSource, NoSource, Tally
from holdfast.checkpoint.wants import Wants


class _Finding(StrEnum):
    INTACT = "Intact"
    DAMAGED = "Damaged"
    UNAVAILABLE = "Unavailable"
    UNFIT = "Unfit"


class _Word(msgspec.Struct, frozen=True):
    """What one rank says of a candidate it has read."""

    finding: _Finding = _Finding.INTACT
    reason: str = ""
    healed: tuple[str, ...] = ()


class _Offer(msgspec.Struct, frozen=True):
    """What one rank says of a candidate it has opened: which checkpoint it sees, by a hash, and what it needs."""

    word: _Word
    checkpoint: str = ""
    demand: Demand | None = None


_WORDS = msgspec.msgpack.Decoder(_Word)
_OFFERS = msgspec.msgpack.Decoder(_Offer)


@dataclass(frozen=True, slots=True)
class Position:
    """Where training goes on. `skipped` says which newer candidates were passed over, and why; `tier` from where
    it was restored, NONE where it was not; `healed` which damaged blocks, on any rank, were had from elsewhere;
    `tally` what it cost this rank.

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
    healed: tuple[str, ...] = ()
    tally: Tally = field(default_factory=Tally)
    saved_world_size: int = 0
    random: Mapping[str, torch.Tensor] = field(default_factory=dict)


@dataclass(slots=True)
class _Plan:
    """What a rank wants of a checkpoint, and where it belongs once it is read. Objects are read packed."""

    checkpoint: StoredCheckpoint
    wants: Wants
    sharded: dict[str, Any]
    objects: list[tuple[tuple[str | int, ...], str, Target]] = field(default_factory=list)
    singles: dict[str, Target] = field(default_factory=dict)
    data: tuple[str, Target] | None = None
    random: dict[str, torch.Tensor] = field(default_factory=dict)

    def add_object(self, name: str) -> Target:
        strips = self.checkpoint.object_strips(name)
        target = Target.of_bytes(strips[0][1].row_bytes)
        self.wants.add(target, strips)
        return target


@dataclass(slots=True)
class _Contents:
    """The objects of a plan, unpacked: nothing of them is applied before every rank could."""

    objects: list[tuple[tuple[str | int, ...], object]]
    singles: dict[str, Any]
    data: Any


Answer = TypeVar("Answer")


class Restorer:
    """Reads candidates into one rank's training state. `blocks` is where a damaged block may be had instead; ranks
    of the same `host` hand blocks on through shared memory (None: where they run).
    """

    def __init__(
        self,
        council: Council,
        state: TrainingState,
        *,
        blocks: BlockSource | None = None,
        host: str | None = None,
    ) -> None:
        self._council = council
        self._state = state
        self._blocks = blocks or NoSource()
        self._host = host or host_name()
        self._is_new = not state.optimizer.state

    def restore(self, candidates: Sequence[Candidate], *, skipped: Sequence[str]) -> Position:
        """Apply the first of `candidates` that is intact on every rank; step None when there is none and the state
        is as it was.

        Collective; `candidates` are the same on all ranks. Raises, on every rank alike, Unfit when an intact one
        does not fit, Unavailable when a rank cannot read one now (it is not given up for that), and
        NothingToRestore when what was read of damaged ones has already gone into the state.
        """
        passed_over = list(skipped)
        is_touched = False
        for candidate in candidates:
            self._forget()
            plan, demands, reason = self._open(candidate)
            if plan is not None and reason is None:
                is_touched = True
                position, reason = self._read(plan, demands, candidate.tier, passed_over)
                if position is not None:
                    return position
            passed_over.append(f"{candidate.name}: {reason}")
        self._forget()
        if is_touched:
            raise NothingToRestore(f"nothing that can be restored is intact: {'; '.join(passed_over)}")
        return Position(skipped=tuple(passed_over))

    def _forget(self) -> None:
        """Reading makes an optimizer's state, as after a first step."""
        if self._is_new:
            self._state.optimizer.state.clear()

    def _open(self, candidate: Candidate) -> tuple[_Plan | None, list[Demand], str | None]:
        """The plan, what all ranks need, and why the candidate is passed over if it is. Touches nothing."""
        plan = _attempt(candidate.name, lambda: self._plan(candidate.open()))
        if isinstance(plan, _Word):
            offer = _Offer(word=plan)
        else:
            offer = _Offer(_Word(), plan.checkpoint.digest(), plan.wants.demand(self._host))
        heard = [_OFFERS.decode(each) for each in self._council.exchange(msgspec.msgpack.encode(offer))]
        reason = _agree([each.word for each in heard])
        if reason is not None or isinstance(plan, _Word):
            return None, [], reason
        for rank, each in enumerate(heard):
            if each.checkpoint != heard[0].checkpoint:
                raise Unavailable(f"rank {rank} and rank 0 see two different checkpoints at {candidate.name}")
        return plan, [each.demand for each in heard if each.demand is not None], None

    def _read(
        self, plan: _Plan, demands: Sequence[Demand], tier: Tier, passed_over: Sequence[str]
    ) -> tuple[Position | None, str | None]:
        """Where training goes on, or why the candidate is passed over."""
        tally, error = read_together(plan.checkpoint, self._council, plan.wants, demands, self._blocks)
        taken = _attempt(plan.checkpoint.name, lambda: _unpack(plan, error))
        word = taken if isinstance(taken, _Word) else _Word(healed=tuple(tally.healed))
        heard = [_WORDS.decode(each) for each in self._council.exchange(msgspec.msgpack.encode(word))]
        reason = _agree(heard)
        if reason is not None or isinstance(taken, _Word):
            return None, reason
        self._apply(plan, taken)
        found = plan.checkpoint.manifest
        # All ranks together have taken this many; where it does not come out even, some are seen again.
        batches = found.batches * found.world_size // self._council.world_size
        position = Position(
            step=found.step,
            batches=batches,
            to_drop=batches if taken.data is None else 0,
            skipped=tuple(passed_over),
            tier=tier,
            healed=tuple(sorted({block for each in heard for block in each.healed})),
            tally=tally,
            saved_world_size=found.world_size,
            random=plan.random,
        )
        return position, None

    def _plan(self, checkpoint: StoredCheckpoint) -> _Plan:
        make_room(self._state.model, self._state.optimizer, checkpoint)
        plan = _Plan(checkpoint=checkpoint, wants=Wants(checkpoint.map), sharded=self._state.sharded())
        wanted, paths = flatten_state_dict(plan.sharded)
        fitting = Fitting(checkpoint)
        for name, value in wanted.items():
            if not isinstance(value, torch.Tensor):
                if fitting.object(name):
                    plan.objects.append((paths[name], name, plan.add_object(name)))
                continue
            shard = shard_of(name, value)
            if shard is not None and fitting.tensor(name, shard):
                plan.wants.add(Target(shard.local), checkpoint.tensor_strips(name, shard.box))
        for name in self._state.singles:
            if fitting.object(name):
                plan.singles[name] = plan.add_object(name)
        fitting.finish()
        self._plan_own(plan)
        return plan

    def _plan_own(self, plan: _Plan) -> None:
        """Of what was saved per rank, that of the rank this one follows."""
        checkpoint = plan.checkpoint
        rank = randomness.source_rank(self._council.rank, checkpoint.manifest.world_size)
        name = data_name(rank)
        if self._state.data is not None and checkpoint.has_object(name):
            plan.data = name, plan.add_object(name)
        prefix = random_prefix(rank)
        for name in checkpoint.names(prefix):
            dtype, shape = checkpoint.shape_of(name)
            plan.random[name.removeprefix(prefix)] = tensor = torch.empty(shape, dtype=dtype)
            whole = Box(offsets=(0,) * len(shape), sizes=shape)
            plan.wants.add(Target(tensor), checkpoint.tensor_strips(name, whole))

    def _apply(self, plan: _Plan, contents: _Contents) -> None:
        """The tensors are in place; so is everything else now."""
        state = self._state
        for path, value in contents.objects:
            _place(plan.sharded, path, value)
        state.load_sharded(plan.sharded)
        for name, single in state.singles.items():
            single.load_state_dict(contents.singles[name])
        if state.data is not None and contents.data is not None:
            state.data.load_state_dict(contents.data)


def _attempt(name: str, work: Callable[[], Answer]) -> Answer | _Word:
    """What `work` returns, or what a rank says when it cannot be done."""
    try:
        return work()
    except Damaged as damage:
        return _Word(_Finding.DAMAGED, str(damage))
    except Unfit as misfit:
        return _Word(_Finding.UNFIT, str(misfit))
    except OSError as error:
        return _Word(_Finding.UNAVAILABLE, f"{name} cannot be read: {error}")


def _agree(words: Sequence[_Word]) -> str | None:
    """None when every rank found the candidate intact, otherwise the first reason why not."""

    def reasons(finding: _Finding) -> list[str]:
        return [f"rank {rank}: {said.reason}" for rank, said in enumerate(words) if said.finding is finding]

    for reason in reasons(_Finding.UNAVAILABLE):
        raise Unavailable(reason)
    for reason in reasons(_Finding.DAMAGED):
        return reason
    for reason in reasons(_Finding.UNFIT):
        raise Unfit(reason)
    return None


def _unpack(plan: _Plan, error: Exception | None) -> _Contents:
    if error is not None:
        raise error
    unpacker = Unpacker()

    def unpack(name: str, target: Target) -> object:
        try:
            return unpacker.unpack(target.content().tobytes())
        except pickle.UnpicklingError as reason:
            text = f"{name} in {plan.checkpoint.name} is not made of plain values and tensors: {reason}"
            raise Unfit(text) from reason

    return _Contents(
        objects=[(path, unpack(name, target)) for path, name, target in plan.objects],
        singles={name: unpack(name, target) for name, target in plan.singles.items()},
        data=None if plan.data is None else unpack(*plan.data),
    )


def _place(nested: Any, path: tuple[str | int, ...], value: object) -> None:
    for step in path[:-1]:
        nested = nested[step]
    nested[path[-1]] = value
