"""The part of the library a training script sees."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import TypeVar

from torch.nn import Module
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from holdfast.api.errors import InvalidInput, Problem
from holdfast.api.rankrecord import Phase
from holdfast.api.round import Follows, Tier
from holdfast.checkpoint.capture import randomness
from holdfast.checkpoint.capture.capture import Capture
from holdfast.checkpoint.capture.equivalence import Equivalence, LossOf
from holdfast.checkpoint.capture.learningrate import LearningRate
from holdfast.checkpoint.capture.savegroup import SaveGroup
from holdfast.checkpoint.capture.state import DataPlace, Stateful, TrainingState
from holdfast.checkpoint.capture.tier import open_memory
from holdfast.checkpoint.commit.retention import Writer
from holdfast.checkpoint.commit.storage import Storage
from holdfast.checkpoint.errors import NothingToRestore
from holdfast.checkpoint.restore.enclosed import read_enclosed
from holdfast.checkpoint.restore.opening import Opening, open_together
from holdfast.checkpoint.restore.restore import Position, restore_newest
from holdfast.checkpoint.runport import RunPort
from holdfast.checkpoint.save.persister import Persister, Reached, SavePoint
from holdfast.checkpoint.save.saves import Save, SavePolicy, StorageReport
from holdfast.checkpoint.save.tidying import retention_of
from holdfast.checkpoint.storage.address import storage_at

_LINGER_S = 10.0  # For a save in flight when the loop is left early: seconds, as a rule.

Batch = TypeVar("Batch")


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
    compared and the newest ones may not be verified yet. With `compares_batches` the run is told of each batch
    (`Run.batch`); a script that does so itself, or trains with the same batches again on purpose, says False.
    `storage` and `reached` are for tests and other kinds of storage.

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
    compares_batches: bool = True
    storage: Storage | None = None
    reached: Reached = lambda point: None

    def __post_init__(self) -> None:
        for name, number in (("every_steps", self.every_steps), ("keep", self.keep)):
            if number is not None and number < 1:
                raise InvalidInput(Problem(field=name, value=number, fix="write at least 1"))
        rehearsed_from = self.run.rehearsed_from
        uri = rehearsed_from or self.uri or self.run.assignment.restore.uri
        if uri and (self.storage is None or rehearsed_from is not None):
            self.storage = storage_at(uri)
        self._group = SaveGroup(self.run.assignment)
        self._equivalence: Equivalence | None = None
        if self.equivalence is not None:
            self._equivalence = Equivalence(self.equivalence, self.model, rank=self.run.assignment.rank)
        self._policy: SavePolicy | None = None
        self._save: Save | None = None
        self._place: DataPlace | None = None
        self._rate: LearningRate | None = None
        self._step, self._batches = 0, 0  # Completed steps, and batches each rank has taken.
        self._to_drop = 0
        self._position: Position | None = None
        self._has_begun = False

    def steps(self, data: Iterable[Batch], *, until: int | None = None) -> Iterator[tuple[int, Batch]]:
        """Restore, then yield each batch with the number of the step it is for.

        The first step of a run is 1; after a restore of step N the next is N + 1. A step counts as completed
        when the loop comes back for the next batch: then its state is saved, if it is due or wanted. The loop ends
        with the data or after step `until`, and then the last step is saved and waited for. One that is left by
        `break` saves nothing more, but what is in flight may land. Called again, as for the next epoch, it goes
        on where it ended. `until` of a round's first call is told as the step at which the whole job ends.

        Data with a state_dict() is given its state back. Of other data as many batches as were taken are read and
        dropped; a call whose data ends before that leaves the rest to the next call. In a world of another size
        the number per rank changes so that the number over all ranks stays; there data with a state_dict() is
        treated like other data, unless its attribute `counts_globally` is True.

        Raises what `run.check` raises when the round is over; Fenced when a newer round has taken over;
        Unavailable when the directory cannot be used; NothingToRestore when a step is to be restored, or
        checkpoints are there, and none can be used (a round with `Tier.NONE` starts over); Unfit when what is left
        is of another model; NotEquivalent when what was restored computes another loss than when it was saved;
        SavingStopped when save after save fails; InvalidInput in a round with replica groups, of which it knows
        nothing.
        """
        # From now on the state that is saved is that of what this pass is over.
        knowing = self.data
        if knowing is None and isinstance(data, Stateful):
            knowing = data
        if knowing is not None and self._place is not None:
            self._place.data = knowing
        elif knowing is not None and not self._has_begun:
            self._place = DataPlace(knowing)
        if self._has_begun:
            self.run.pass_begins()
        else:
            self._begin(until)
        if isinstance(data, DataLoader):
            self.run.loader(workers=data.num_workers)
        source, drill = self._open_data(data), self.run.drill
        try:
            while until is None or self._step < until:
                self.run.check()
                self.run.phase(Phase.DATA)
                try:
                    batch = next(source)
                except StopIteration:
                    if self._place is not None:
                        self._place.has_ended = True
                    break
                if self._place is not None:
                    self._place.has_ended = False
                self._position = None
                self.run.phase(Phase.FORWARD)
                self._step += 1
                self._batches += 1
                if self._rate is not None:
                    self._rate.before(self._step)
                if drill is not None:
                    batch = drill.batch(batch)
                if self.compares_batches:
                    self.run.took(self._step, batch)
                if self._equivalence is not None:
                    self._equivalence.batch = batch
                yield self._step, batch
                if self._policy is not None:
                    self._policy.completed(step=self._step, batches=self._batches)
        except GeneratorExit:
            if self._save is not None:
                self._save.linger(_LINGER_S)
            raise
        if self._save is not None:
            self._save.finish(step=self._step, batches=self._batches)

    def close(self) -> None:
        """Wait for the save in flight and give back what the ranks talked over. Raises as `steps` does."""
        if self._save is not None:
            self._save.wait()
        self._group.close()

    def _begin(self, until: int | None) -> None:
        """Restore, or find that there is nothing to restore, and get ready for this round's saves."""
        state = TrainingState(
            model=self.model,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            scaler=self.scaler,
            data=self._place,
            extra=self.extra or {},
            equivalence=self._equivalence,
        )
        part, restore = self.run.assignment, self.run.assignment.restore
        if part.group is not None:
            fix = "save from the group of index 0, as examples/replicas/train.py does"
            raise InvalidInput(
                Problem("parallelism.replicaGroupNodes", f"a group of {part.group.size} ranks", fix)
            )
        opening = Opening(token="")
        if self.storage is not None:
            opening = open_together(self.storage, self._group, round=part.round, restore=restore)
        position = restore_newest(state, self._group, part, storage=self.storage, opening=opening)
        if position.step is None and restore.tier is not Tier.NONE:
            # What is lost otherwise may be months of work, so nobody starts over without being told.
            reasons = "; ".join(position.skipped) or "there is none"
            if restore.step:
                raise NothingToRestore(f"no checkpoint up to step {restore.step} can be restored: {reasons}")
            if opening.candidates or opening.unreadable:
                raise NothingToRestore(f"checkpoints are there and none can be used: {reasons}")
        if self._equivalence is not None:
            self._equivalence.check(self._group)
        if self.run.rehearsed_from is None:
            self._get_ready(state, opening, position)
        if part.rank == 0 and self.storage is not None:
            self.run.enclosed(position.step, read_enclosed(self.storage, opening.line, position))
        rate, is_memory = LearningRate(self.optimizer, self.scheduler), position.tier is Tier.MEMORY
        self.run.restored(
            position.step,
            position.skipped,
            tier=position.tier,
            healed=position.healed,
            follows=(Follows.BATCHES, *([Follows.LEARNING_RATE] if rate.is_reachable else [])),
            until=until,
        )
        # A snapshot of memory is younger than what was gone back to, and has it all behind it.
        skip = 0 if is_memory else restore.batches_to_skip(position.step)
        done = restore if is_memory else restore.settled(position.step or 0)
        rate.go_on(done.cuts(), position.step or 0, has_all=is_memory)
        self._rate = rate
        self._to_drop = position.to_drop + skip
        self._position = position
        self._step, self._batches = position.step or 0, position.batches + skip
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

    def _continue_random(self) -> None:
        if self._position is not None:
            randomness.continue_from(
                self._position.random,
                self._position.saved_world_size,
                rank=self._group.rank,
                world_size=self._group.world_size,
            )

    def _get_ready(self, state: TrainingState, opening: Opening, position: Position) -> None:
        """For the snapshots and saves of this round."""
        run, part, storage, parent = self.run, self.run.assignment, self.storage, position.step
        report = None
        if storage is not None and part.rank == 0:
            report = StorageReport(run, opening, uri=storage.uri, damaged=position.damaged)
            report.restored(opening.line, parent)
        memory = open_memory(part, self._group, parent=parent)
        if storage is None and memory is None:
            return
        capture = Capture(state, self._group, memory, remembered=run.snapshotted, is_finite=run.is_finite)

        def reached(point: SavePoint) -> None:
            if run.drill is not None and point is SavePoint.FILE_WRITTEN:
                run.drill.write()
            self.reached(point)

        if storage is not None:
            if run.drill is not None:
                run.drill.saves_here()
            persister = Persister(
                storage,
                self._group,
                Writer(opening.number, parent, opening.token),
                retention=lambda: retention_of(run, self.keep),
                reached=reached,
                stored=report.tidied if report is not None else lambda line, saved: None,
            )
            saved = parent if position.tier is Tier.CHECKPOINT else None  # Of memory there is none yet.
            self._save = Save(run, capture, persister, uri=storage.uri, saved_step=saved, reached=self.reached)
        every_steps = [each for each in (self.every_steps, part.save_every) if each is not None]
        self._policy = SavePolicy(run, capture, memory=memory, save=self._save, every_steps=every_steps)
