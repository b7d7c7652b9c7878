"""Going back to the newest candidate that every rank finds intact.

Blocks are read into the live parameters and verified there, so a candidate that proves damaged halfway has been
written over them. That costs nothing while there is a next one, which overwrites everything; when there is
none, the round ends: nobody trains on from what is half of two states.
"""

import gc
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import TypeVar

import msgspec
import torch

from holdfast.api.control import Assignment
from holdfast.api.errors import Damaged, Unavailable
from holdfast.api.round import Tier
from holdfast.checkpoint.capture.savegroup import SaveGroup
from holdfast.checkpoint.capture.state import TrainingState
from holdfast.checkpoint.commit.storage import Storage
from holdfast.checkpoint.errors import NothingToRestore, Unfit
from holdfast.checkpoint.format.verifiedfile import BlockSource, NoSource, Tally
from holdfast.checkpoint.restore.blockpool import host_name
from holdfast.checkpoint.restore.duties import Demand
from holdfast.checkpoint.restore.opening import Opening
from holdfast.checkpoint.restore.plan import Contents, Plan, refuse_left_over
from holdfast.checkpoint.restore.reading import FailedElsewhere, read_together
from holdfast.checkpoint.restore.recollect import LIMIT, recollect
from holdfast.checkpoint.restore.stored import Candidate, StoredCheckpoint

_LOG = logging.getLogger(__name__)


class _Finding(StrEnum):
    INTACT = "Intact"
    DAMAGED = "Damaged"
    UNAVAILABLE = "Unavailable"
    UNFIT = "Unfit"


class _Word(msgspec.Struct, frozen=True):
    """What one rank says of a candidate it has read, and which of the saved groups are none of its own."""

    finding: _Finding = _Finding.INTACT
    reason: str = ""
    healed: tuple[str, ...] = ()
    left_over: tuple[str, ...] = ()


class _Offer(msgspec.Struct, frozen=True):
    """What one rank says of a candidate it has opened: which checkpoint it sees, by a hash, what it needs, and
    what it does not ask for, by hashes of the names, and which of that no other rank can.
    """

    word: _Word
    checkpoint: str = ""
    demand: Demand | None = None
    left_over: frozenset[bytes] = frozenset()
    lost: tuple[str, ...] = ()


_WORDS = msgspec.msgpack.Decoder(_Word)
_OFFERS = msgspec.msgpack.Decoder(_Offer)


@dataclass(frozen=True, slots=True)
class Position:
    """Where training goes on. `skipped` says which newer candidates were passed over, and why; `tier` from where
    it was restored, NONE where it was not; `healed` which damaged blocks, on any rank, were had from elsewhere;
    `tally` what it cost this rank; `damaged` are the names of the candidates that were passed over.

    `batches` is what each rank of this world has taken, `saved_batches` what each of the saved world had.
    `random` is the saved random state this rank follows, from a world of `saved_world_size`. It is for the caller
    to apply, last of all: opening the data and passing batches over may draw numbers as well. `begun` is that with
    which the pass over the data began.
    """

    step: int | None = None
    batches: int = 0
    saved_batches: int = 0
    skipped: tuple[str, ...] = ()
    tier: Tier = Tier.NONE
    healed: tuple[str, ...] = ()
    tally: Tally = field(default_factory=Tally)
    damaged: tuple[str, ...] = ()
    saved_world_size: int = 0
    random: Mapping[str, torch.Tensor] = field(default_factory=dict)
    begun: Mapping[str, torch.Tensor] = field(default_factory=dict)


Answer = TypeVar("Answer")


class Restorer:
    """Reads candidates into one rank's training state. `blocks` is where a damaged block may be had instead; ranks
    of the same `host` hand blocks on through shared memory (None: where they run).
    """

    def __init__(
        self,
        group: SaveGroup,
        state: TrainingState,
        *,
        blocks: BlockSource | None = None,
        host: str | None = None,
    ) -> None:
        self._group = group
        self._state = state
        self._blocks = blocks or NoSource()
        self._host = host or host_name()

    def restore(self, candidates: Sequence[Candidate], *, skipped: Sequence[str]) -> Position:
        """Apply the first of `candidates` that is intact on every rank; step None when there is none and the state
        is as it was.

        Collective; `candidates` are the same on all ranks. Raises, on every rank alike, Unfit when an intact one
        does not fit, Unavailable when a rank cannot read one now (it is not given up for that), and
        NothingToRestore when what was read of damaged ones has already gone into the state.
        """
        passed_over = list(skipped)
        damaged: list[str] = []
        is_touched = False
        for candidate in candidates:
            plan, demands, reason = self._open(candidate)
            if plan is not None and reason is None:
                is_touched = True
                position, reason = self._read(plan, demands, candidate.tier, passed_over)
                if position is not None:
                    return replace(position, damaged=tuple(damaged))
            damaged.append(candidate.name)
            passed_over.append(f"{candidate.name}: {reason}")
        if is_touched:
            raise NothingToRestore(f"nothing that can be restored is intact: {'; '.join(passed_over)}")
        return Position(skipped=tuple(passed_over), damaged=tuple(damaged))

    def _open(self, candidate: Candidate) -> tuple[Plan | None, list[Demand], str | None]:
        """The plan, what all ranks need, and why the candidate is passed over if it is. Touches nothing."""
        group = self._group
        plan = _attempt(
            candidate.name,
            lambda: Plan.of(candidate.open().healed_by(self._blocks), self._state, group.rank, group.world_size),
        )
        if isinstance(plan, _Word):
            offer = _Offer(word=plan)
        else:
            left_over = frozenset(map(_hash, plan.left_over))
            demand = plan.wants.demand(self._host)
            offer = _Offer(_Word(), plan.checkpoint.digest(), demand, left_over, tuple(plan.lost))
        heard = [_OFFERS.decode(each) for each in self._group.exchange(msgspec.msgpack.encode(offer))]
        reason = _agree([each.word for each in heard])
        if reason is not None or isinstance(plan, _Word):
            return None, [], reason
        for rank, each in enumerate(heard):
            if each.checkpoint != heard[0].checkpoint:
                raise Unavailable(f"rank {rank} and rank 0 see two different checkpoints at {candidate.name}")
        # Stages of a pipeline ask for parts: what nobody asks for would be lost without a word.
        by_nobody = frozenset.intersection(*(each.left_over for each in heard))
        unclaimed = [name for name in plan.left_over if _hash(name) in by_nobody]
        lost = sorted({name for each in heard for name in each.lost} - set(unclaimed))
        refuse_left_over(candidate.name, [*unclaimed, *lost])
        return plan, [each.demand for each in heard if each.demand is not None], None

    def _read(
        self, plan: Plan, demands: Sequence[Demand], tier: Tier, passed_over: Sequence[str]
    ) -> tuple[Position | None, str | None]:
        """Where training goes on, or why the candidate is passed over."""
        tally, error = read_together(plan.checkpoint, self._group, plan.wants, demands, self._blocks)

        def unpack() -> Contents:
            if error is not None:
                raise error
            return plan.unpack()

        taken = _attempt(plan.checkpoint.name, unpack)
        left_over = [each for each in plan.regrouping.left_over if not self._state.allowed.may_leave(each)]
        said = _Word(healed=tuple(tally.healed), left_over=tuple(left_over))
        word = taken if isinstance(taken, _Word) else said
        heard = [_WORDS.decode(each) for each in self._group.exchange(msgspec.msgpack.encode(word))]
        reason = _agree(heard)
        if reason is not None or isinstance(taken, _Word):
            return None, reason
        refuse_left_over(
            plan.checkpoint.name, [each for each in left_over if all(each in other.left_over for other in heard)]
        )
        plan.apply(taken, self._state)
        if self._group.rank == 0:
            _tell(plan)
        found = plan.checkpoint.manifest
        # All ranks together have taken this many; where it does not come out even, some are seen again.
        batches = found.batches * found.world_size // self._group.world_size
        position = Position(
            step=found.step,
            batches=batches,
            saved_batches=found.batches,
            skipped=tuple(passed_over),
            tier=tier,
            healed=tuple(sorted({block for each in heard for block in each.healed})),
            tally=tally,
            saved_world_size=found.world_size,
            random=plan.random,
            begun=plan.begun,
        )
        return position, None


def _hash(name: str) -> bytes:
    return hashlib.blake2b(name.encode(), digest_size=8).digest()


def _tell(plan: Plan) -> None:
    """What is not as it was saved, though it was let pass."""
    name, kept = plan.checkpoint.name, [*plan.kept, *plan.regrouping.kept]
    if kept:
        _LOG.warning("kept as the script made it, %s has none of it names=%s", name, ",".join(kept))
    if plan.unused:
        _LOG.warning("not restored, the script has none of it checkpoint=%s names=%s", name, ",".join(plan.unused))


def _attempt(name: str, work: Callable[[], Answer]) -> Answer | _Word:
    """What `work` returns, or what a rank says when it cannot be done."""
    try:
        return work()
    except Damaged as damage:
        return _Word(_Finding.DAMAGED, str(damage))
    except FailedElsewhere:
        return _Word()
    except Unfit as misfit:
        return _Word(_Finding.UNFIT, str(misfit))
    except OSError as error:
        return _Word(_Finding.UNAVAILABLE, f"{name} cannot be read: {error}")


def _agree(words: Sequence[_Word]) -> str | None:
    """None when every rank found the candidate intact, otherwise the first reason why not."""
    for finding in (_Finding.UNAVAILABLE, _Finding.DAMAGED, _Finding.UNFIT):
        for rank, said in enumerate(words):
            if said.finding is not finding:
                continue
            reason = f"rank {rank}: {said.reason}"
            if finding is _Finding.DAMAGED:
                return reason
            raise (Unavailable if finding is _Finding.UNAVAILABLE else Unfit)(reason)
    return None


def restore_newest(
    state: TrainingState, group: SaveGroup, assignment: Assignment, *, storage: Storage | None, opening: Opening
) -> Position:
    """Apply the newest state that the round may have and that is intact: of the nodes' memory where that is newer,
    else of the storage. Collective; raises as `Restorer` does.

    A round that may not go on from memory still has damaged blocks from there: their hashes say what they are.
    """
    stored = []
    if storage is not None:
        stored = [Candidate(name, partial(StoredCheckpoint.open, storage, name)) for name in opening.candidates]
    may_remember = assignment.restore.tier is Tier.MEMORY
    # A restore makes many small objects and few cycles. Python would look through all that the process holds for
    # them, torch's own hundreds of thousands again and again.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        recollection = recollect(group, assignment, after=opening.newest, limit=LIMIT if may_remember else 0)
        try:
            restorer = Restorer(group, state, blocks=recollection)
            position = restorer.restore([*recollection.candidates, *stored], skipped=opening.unreadable)
        finally:
            recollection.close()
    finally:
        if was_enabled:
            gc.enable()
    # What is said of the checkpoints that were not finite when they were saved: passed over, or all there is.
    newer = [
        (name, step) for name, step in opening.last_resort if position.step is not None and step >= position.step
    ]
    said = [f"{name}: not finite when it was saved" for name, step in newer if step != position.step]
    if position.tier is Tier.CHECKPOINT and len(said) < len(newer):
        _LOG.warning(
            "nothing healthy is left to restore, this was not finite when it was saved step=%d", position.step
        )
        said.append(f"every healthy one: none is left, and that of step {position.step} was not finite when saved")
    return replace(position, skipped=(*position.skipped, *said))
