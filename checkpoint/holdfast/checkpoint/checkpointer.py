"""The part of the library a training script sees."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import NamedTuple, TypeVar

from torch.nn import Module
from torch.optim import Optimizer

from holdfast.api.control import Assignment
from holdfast.api.errors import InvalidInput, Problem
from holdfast.api.rankrecord import Phase
from holdfast.api.round import Restore, Tier
from holdfast.checkpoint import randomness
from holdfast.checkpoint.capture import Capture
from holdfast.checkpoint.council import Council
from holdfast.checkpoint.dataplace import DataPlace, Stateful
from holdfast.checkpoint.equivalence import Equivalence, LossOf
from holdfast.checkpoint.errors import NothingToRestore
from holdfast.checkpoint.keeping import Keeping
from holdfast.checkpoint.memorytier import open_memory
from holdfast.checkpoint.opening import Opening, open_together
from holdfast.checkpoint.persist import Lineage, Persister, Reached, SavePoint
from holdfast.checkpoint.restore import Position
from holdfast.checkpoint.restoring import restore_newest
from holdfast.checkpoint.retention import Retention
from holdfast.checkpoint.runport import RunPort
from holdfast.checkpoint.saving import Saving, StorageReport
from holdfast.checkpoint.state import TrainingState
from holdfast.checkpoint.storage import Storage
from holdfast.checkpoint.storageuri import storage_at

_LINGER_S = 10.0  # For a save in flight when the loop is left early: seconds, as a rule.
_KEEP = 3  # The newest may be cut short by what ended the round, the one before it may be damaged.

Batch = TypeVar("Batch")


def _require_nothing_there(restore: Restore, opening: Opening, position: Position) -> None:
    """Nothing was restored. Raises NothingToRestore unless that is as it should be: nothing was asked for, and
    storage holds nothing. What is lost otherwise may be months of work, so nobody starts over without being told.
    """
    reasons = "; ".join(position.skipped) or "there is none"
    if restore.step:
        raise NothingToRestore(f"no checkpoint up to step {restore.step} can be restored: {reasons}")
    if opening.candidates or opening.unreadable:
        raise NothingToRestore(f"checkpoints are there and none can be used: {reasons}")


class _At(NamedTuple):
    """How far the loop is: completed steps, and batches each rank has taken."""

    step: int
    batches: int


@dataclass
class Checkpointer:
    """Saves a training loop's state while it runs, and restores it when a round begins.

    All ranks make it alike, once per round, after the process group. `scaler` is that of mixed precision; `data`
    knows its own position, if that is not what `steps` is given; `extra` are further objects with state_dict() and
    load_state_dict(). `equivalence` gives the loss of a batch under the model as it is: it is stored with each
    checkpoint and computed again after a restore, see `equivalence.py`. `uri` is the directory or the place in an
    object store (by default the one the round was told), `every_steps` how many completed steps lie between two
    saves (besides those that the job wants and the last one), `keep` how many checkpoints stay (None:
    what the job says, else 3); the newest healthy one stays in any case, and a few more where replicas are
    compared and the newest ones may not be verified yet. `storage` and `reached` are for tests and other kinds of
    storage.

    Where the job wants snapshots in the nodes' memory, they are taken as often as it says. Without a directory it
    does nothing else but count steps. Raises InvalidInput when something in this cannot be checkpointed.
    """

    run: RunPort
    _: KW_ONLY
    model: Module
    optimizer: Optimizer
    scheduler: Stateful | None = None
    scaler: Stateful | None = None
    data: Stateful | None = None
    extra: Mapping[str, Stateful] | None = None
    equivalence: LossOf | None = None
    uri: str | None = None
    every_steps: int | None = None
    keep: int | None = None
    storage: Storage | None = None
    reached: Reached = lambda point: None

    def __post_init__(self) -> None:
        for name, number in (("every_steps", self.every_steps), ("keep", self.keep)):
            if number is not None and number < 1:
                raise InvalidInput(Problem(field=name, value=number, fix="write at least 1"))
        uri = self.uri or self.run.assignment.restore.uri
        if self.storage is None and uri:
            self.storage = storage_at(uri)
        self._council = Council(self.run.assignment)
        self._equivalence: Equivalence | None = None
        if self.equivalence is not None:
            self._equivalence = Equivalence(self.equivalence, self.model, rank=self.run.assignment.rank)
        self._keeping: Keeping | None = None
        self._place: DataPlace | None = None
        self._at = _At(step=0, batches=0)
        self._to_drop = 0
        self._position: Position | None = None
        self._has_begun = False

    def steps(self, data: Iterable[Batch], *, until: int | None = None) -> Iterator[tuple[int, Batch]]:
        """Restore, then yield each batch with the number of the step it is for.

        The first step of a run is 1; after a restore of step N the next is N + 1. A step counts as completed
        when the loop comes back for the next batch: then its state is saved, if it is due or wanted. The loop ends
        with the data or after step `until`, and then the last step is saved and waited for. One that is left by
        `break` saves nothing more, but what is in flight may land. Called again, as for the next epoch, it goes
        on where it ended.

        Data with a state_dict() is given its state back. Of other data as many batches as were taken are read and
        dropped; a call whose data ends before that leaves the rest to the next call. In a world of another size
        the number per rank changes so that the number over all ranks stays; there data with a state_dict() is
        treated like other data, unless its attribute `counts_globally` is True.

        Raises what `run.check` raises when the round is over; Fenced when a newer round has taken over;
        Unavailable when the directory cannot be used; NothingToRestore when a step is to be restored, or
        checkpoints are there, and none can be used (a round with `Tier.NONE` starts over); Unfit when what is left
        is of another model; NotEquivalent when what was restored computes another loss than when it was saved;
        SavingStopped when save after save fails.
        """
        self._turn_to(data)
        if not self._has_begun:
            self._begin(self._state())
        source, drill = self._open_data(data), self.run.drill
        try:
            for batch in self._fetch(source, until):
                self._at = _At(self._at.step + 1, self._at.batches + 1)
                if drill is not None:
                    batch = drill.batch(batch)
                if self._equivalence is not None:
                    self._equivalence.batch = batch
                yield self._at.step, batch
                if self._keeping is not None:
                    self._keeping.completed(step=self._at.step, batches=self._at.batches)
        except GeneratorExit:
            if self._keeping is not None:
                self._keeping.linger(_LINGER_S)
            raise
        if self._keeping is not None:
            self._keeping.finish(step=self._at.step, batches=self._at.batches)

    def close(self) -> None:
        """Wait for the save in flight and give back what the ranks talked over. Raises as `steps` does."""
        if self._keeping is not None:
            self._keeping.wait()
        self._council.close()

    def _turn_to(self, data: object) -> None:
        """`data` is what this pass is over: its state is the one that is saved from now on."""
        own = data if isinstance(data, Stateful) else None
        knowing = own if self.data is None else self.data
        if knowing is not None and self._place is not None:
            self._place.data = knowing
        elif knowing is not None and not self._has_begun:
            self._place = DataPlace(knowing)

    def _state(self) -> TrainingState:
        return TrainingState(
            model=self.model,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            scaler=self.scaler,
            data=self._place,
            extra=self.extra or {},
            equivalence=self._equivalence,
        )

    def _begin(self, state: TrainingState) -> None:
        restore = self.run.assignment.restore
        position = self._restore(state, restore)
        skip = restore.skip_batches
        is_otherwise = restore.step is not None and (position.step or 0) > restore.step
        if position.tier is Tier.MEMORY or is_otherwise:
            skip = 0  # What is younger than what was asked for has it behind it, or was not to be changed.
        elif restore.learning_rate_scale != 1.0:
            state.scale_learning_rate(restore.learning_rate_scale)
        self._to_drop = position.to_drop + skip
        self._position = position
        self._at = _At(position.step or 0, position.batches + skip)
        self.run.watch(self.model)
        self._has_begun = True

    def _open_data(self, data: Iterable[Batch]) -> Iterator[Batch]:
        """Batches from where training goes on; once that is reached, random numbers go on where they were."""
        is_between = self._place is not None and self._place.has_ended
        if is_between:
            self._continue_random()
        source = iter(data)
        self._to_drop -= sum(1 for _ in itertools.islice(source, self._to_drop))
        if not (self._to_drop or is_between):
            self._continue_random()
            self._position = None
        return source

    def _note(self, *, has_ended: bool) -> None:
        if self._place is not None:
            self._place.has_ended = has_ended

    def _continue_random(self) -> None:
        if self._position is not None:
            randomness.continue_from(
                self._position.random,
                self._position.saved_world_size,
                rank=self._council.rank,
                world_size=self._council.world_size,
            )

    def _restore(self, state: TrainingState, restore: Restore) -> Position:
        part = self.run.assignment
        opening = Opening(token="")
        if self.storage is not None:
            opening = open_together(self.storage, self._council, round=part.round, restore=restore)
        position = restore_newest(state, self._council, part, storage=self.storage, opening=opening)
        if position.step is None and restore.tier is not Tier.NONE:
            _require_nothing_there(restore, opening, position)
        if self._equivalence is not None:
            self._equivalence.check(self._council)
        report = None
        if self.storage is not None and part.rank == 0:
            report = StorageReport(self.run, opening, uri=self.storage.uri, damaged=position.damaged)
            report.restored(opening.line, position.step)
        self._open(state, opening, position, report)
        self.run.restored(position.step, position.skipped, tier=position.tier, healed=position.healed)
        return position

    def _open(
        self, state: TrainingState, opening: Opening, position: Position, report: StorageReport | None
    ) -> None:
        """Get ready for the snapshots and saves of this round."""
        part, storage, parent = self.run.assignment, self.storage, position.step
        memory, saving = open_memory(part, self._council, parent=parent), None
        if storage is None and memory is None:
            return
        capture = Capture(
            state, self._council, memory, remembered=self.run.snapshotted, is_finite=self.run.is_finite
        )
        if storage is not None:
            if self.run.drill is not None:
                self.run.drill.saves_here()
            lineage = Lineage(round=opening.number, parent=parent, token=opening.token)
            persister = Persister(
                storage,
                self._council,
                lineage,
                retention=partial(self._retention, part),
                reached=self._reach,
                stored=report.tidied if report is not None else lambda line, saved: None,
            )
            saved = parent if position.tier is Tier.CHECKPOINT else None  # Of memory there is none yet.
            saving = Saving(self.run, capture, persister, uri=storage.uri, saved_step=saved, reached=self.reached)
        every_steps = [each for each in (self.every_steps, part.save_every) if each is not None]
        self._keeping = Keeping(self.run, capture, memory=memory, saving=saving, every_steps=every_steps)

    def _reach(self, point: SavePoint) -> None:
        if self.run.drill is not None and point is SavePoint.FILE_WRITTEN:
            self.run.drill.write()
        self.reached(point)

    def _retention(self, part: Assignment) -> Retention:
        standing = self.run.standing()
        return Retention(
            self.keep or part.keep or _KEEP,
            part.fingerprint_every,
            standing.verified,
            unhealthy_from=standing.unhealthy_from,
        )

    def _fetch(self, source: Iterator[Batch], until: int | None) -> Iterator[Batch]:
        while until is None or self._at.step < until:
            self.run.check()
            self.run.phase(Phase.DATA)
            try:
                batch = next(source)
            except StopIteration:
                self._note(has_ended=True)
                return
            self._note(has_ended=False)
            self._position = None
            self.run.phase(Phase.FORWARD)
            yield batch
