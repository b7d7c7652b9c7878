"""The part of the library a training script sees."""

import itertools
import logging
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import TypeVar

from torch.nn import Module
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from holdfast.api.control import Assignment
from holdfast.api.errors import InvalidInput, Problem, Unavailable
from holdfast.api.rankrecord import Phase
from holdfast.api.round import Follows, Tier
from holdfast.checkpoint import fit
from holdfast.checkpoint.capture import optimizerstate, randomness
from holdfast.checkpoint.capture.allowed import Allowed
from holdfast.checkpoint.capture.aside import Aside
from holdfast.checkpoint.capture.asked import Asked
from holdfast.checkpoint.capture.capture import Capture
from holdfast.checkpoint.capture.cursor import Cursor
from holdfast.checkpoint.capture.dataplace import DataPlace, Stateful
from holdfast.checkpoint.capture.dealing import Dealing, sharing_of
from holdfast.checkpoint.capture.equivalence import Equivalence, LossOf
from holdfast.checkpoint.capture.learningrate import LearningRate
from holdfast.checkpoint.capture.loopplace import LoopPlace
from holdfast.checkpoint.capture.savegroup import SaveGroup
from holdfast.checkpoint.capture.settings import Side, Wishes, shown, told
from holdfast.checkpoint.capture.state import TrainingState
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

_LOG = logging.getLogger(__name__)

_LINGER_S = 10.0  # For a save in flight when the loop is left early: seconds, as a rule.

Batch = TypeVar("Batch")


@dataclass
class Checkpointer:
    """Saves a training loop's state while it runs, and restores it when a round begins.

    All ranks make it alike, once per round, after the process group. `scaler` is that of mixed precision; `data`
    knows its own position, if that is not what `steps` is given; `extra` are further objects with state_dict() and
    load_state_dict(), saved and not watched for corruption. `equivalence` gives the loss of a batch under the
    model as it is: it is stored with each checkpoint and computed again after a restore, see `equivalence.py`.
    `uri` is the directory or the place in an object store (by default the one the round was told), `every_steps`
    how many completed steps lie between two saves (besides those that the job wants and the last one), `keep` how
    many checkpoints stay (None: what the job says, else 3); the newest healthy one stays in any case, and a few
    more where replicas are compared and the newest ones may not be verified yet. With `compares_batches` the run
    is told of each batch (`Run.batch`); a script that does so itself, or trains with the same batches again on
    purpose, says False. `storage` and `reached` are for tests and other kinds of storage.

    What a checkpoint holds of the model, the optimizer and `extra` is restored, in the shape it was saved in, also
    what those do not show before their first step. A name that only one of checkpoint and script has is refused
    (`Unfit`), unless it is among `may_be_missing` (from the checkpoint: it stays as the script made it) or
    `may_be_left_over` (in the checkpoint: it is not restored). Both are patterns of whole names, or of names of
    parameters: `head.*`.

    The place in the data counts batches over the ranks that take different ones. How many those are is taken from
    the loader's sampler (`num_replicas`), else from the model's meshes; `data_parallel` says it where both cannot,
    as for tensor parallelism of one's own with a sampler of one's own.

    `settings` says what holds where the script asks for other settings of the optimizer or the scheduler than
    those that the checkpoint began with: "checkpoint", "script", or one of the two by name (`{"lr": "script"}`, or
    a pattern; first match, else the checkpoint). A line in the log names each that differs. A schedule goes on
    where it was, with the settings that hold.

    Where the job wants snapshots in the nodes' memory, they are taken as often as it says. Without a directory it
    does nothing else but count steps. Raises InvalidInput when something in this cannot be checkpointed.

    A loop is either that of `steps`, or it counts by itself, with `resume`, `completed` and `finish`. In replica
    groups it counts by itself (`holdfast.trainer.Replicas.resumed`): every group restores, and one of them saves.
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
    may_be_missing: Sequence[str] = ()
    may_be_left_over: Sequence[str] = ()
    settings: Wishes = "checkpoint"
    data_parallel: int | None = None
    compares_batches: bool = True
    storage: Storage | None = None
    reached: Reached = lambda point: None

    def __post_init__(self) -> None:
        counts = {"every_steps": self.every_steps, "keep": self.keep, "data_parallel": self.data_parallel}
        for name, number in counts.items():
            if number is not None:
                setattr(self, name, _count(name, number))
        rehearsed_from = self.run.rehearsed_from
        uri = rehearsed_from or self.uri or self.run.assignment.restore.uri
        if uri and (self.storage is None or rehearsed_from is not None):
            self.storage = storage_at(uri)
        optimizerstate.require_optimizer(self.model, self.optimizer)
        self._part: Assignment = self.run.assignment.inside()
        self._group = SaveGroup(self._part)
        self._equivalence: Equivalence | None = None
        if self.equivalence is not None:
            self._equivalence = Equivalence(self.equivalence, self.model, rank=self._part.rank)
        self._policy: SavePolicy | None = None
        self._save: Save | None = None
        ranks = self._group.world_size
        self._dealing = Dealing(ranks, sharing_of(self.model), self._data_parallel(ranks))
        self._opening = Opening(token="")
        self._place: DataPlace | None = DataPlace(self._group.rank, ranks, self.data, dealing=self._dealing)
        self._aside: Aside | None = None  # while passes are begun that are over
        self._rate: LearningRate | None = None
        self._asked: Asked | None = None
        self._loop: LoopPlace | None = None  # of one that counts by itself
        self._step, self._batches = 0, 0  # Completed steps, and batches each rank has taken.
        self._to_skip = 0  # batches that the job passes over
        self._position: Position | None = None
        self._tells: Callable[..., object] | None = None  # what was restored, until the run is told
        self._copied_at: int | None = None  # the step after which another replica group's state came
        self._is_restored = self._has_begun = False
        self._is_left = False  # the loop did not come back from its newest step

    def _data_parallel(self, ranks: int) -> int | None:
        if self.data_parallel is not None and self.data_parallel > ranks:
            fix = f"write how many of the {ranks} ranks take different batches"
            raise InvalidInput(Problem("data_parallel", self.data_parallel, fix))
        return self.data_parallel

    def steps(self, data: Iterable[Batch], *, until: int | None = None) -> Iterator[tuple[int, Batch]]:
        """Restore, then yield each batch with the number of the step it is for.

        The first step of a run is 1; after a restore of step N the next is N + 1. A step counts as completed
        when the loop comes back for the next batch: then its state is saved, if it is due or wanted. The loop ends
        with the data or after step `until`, and then the last step is saved and waited for. One that is left by
        `break` saves nothing more, but what is in flight may land; the step that it was left at counts as
        completed when the next call begins, and is saved then if it is due. `until` of a round's first call is
        told as the step at which the whole job ends, and no longer once training is beyond it.

        Each call is one pass over its data, an epoch. After a restore the calls for passes that are over yield
        nothing, at once, and the one that was under way goes on where it was; a script that asks for `epoch`
        before its first call begins with that pass instead. What a script does between passes is done again for
        those that are over, and the restored state is put back behind them: scheduler, scaler, `extra` and the
        settings of the optimizer's groups, which takes the memory of a second `extra` meanwhile. Where the model
        or what the optimizer keeps of it has changed, the checkpoint is read once more.

        Of a pass that has ended nothing is yielded, unless its data have a length and it has grown. An iterator
        gives what it has once: of one that all passes share, what earlier ones took is read and dropped too.

        A pass goes on in the order in which it began: with the random numbers of then, those of generators that
        the loader, its samplers and its dataset keep among them. Where a sampler draws other indices all the same,
        and its state_dict() does not help, the log says so before the first step. Data with a state_dict() is
        given its state back; of other data as many batches as were taken are read and dropped. In a world of
        another size the number per rank changes so that the number over all ranks that take different batches
        stays; there data with a state_dict() is treated like other data, unless its attribute `counts_globally`
        is True.

        Raises what `run.check` raises when the round is over; Fenced when a newer round has taken over;
        Unavailable when the directory cannot be used; NothingToRestore when a step is to be restored, or
        checkpoints are there, and none can be used (a round with `Tier.NONE` starts over); Unfit when what is left
        is of another model; NotEquivalent when what was restored computes another loss than when it was saved;
        SavingStopped when save after save fails; InvalidInput in a round with replica groups, whose number changes
        while it deals out the batches.
        """
        if not isinstance(data, Iterable) and not hasattr(data, "__getitem__"):
            fix = "give what can be gone through, such as a DataLoader"
            raise InvalidInput(Problem("data", type(data).__name__, fix))
        if self.run.assignment.group is not None:
            fix = "count the steps by Replicas.resumed, as docs/replicagroups.md has it"
            size = self.run.assignment.group.size
            raise InvalidInput(Problem("parallelism.replicaGroupNodes", f"a group of {size} ranks", fix))
        self._begin(until)
        place = self._passes
        if place.is_behind(data):
            self._aside = self._aside or Aside(self._state(), self._group.rank)
            place.passed_by(data)
            return
        self._put_back()
        if self._has_begun:
            self.run.pass_begins()
        self._has_begun = True
        if isinstance(data, DataLoader):
            self.run.loader(workers=data.num_workers)
        source, drill = self._open_data(data), self.run.drill
        if self._is_left and self._policy is not None:  # the pass before was left behind its step, by `break`
            self._policy.completed(step=self._step, batches=self._batches)
        self._is_left = False
        try:
            while until is None or self._step < until:
                self.run.check()
                self.run.phase(Phase.DATA)
                try:
                    batch = next(source)
                except StopIteration:
                    place.ended()
                    break
                place.took()
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
                self._is_left = True
                yield self._step, batch
                self._is_left = False
                if self._policy is not None:
                    self._policy.completed(step=self._step, batches=self._batches)
        except GeneratorExit:
            if self._save is not None:
                self._save.linger(_LINGER_S)
            raise
        if self._save is not None:
            self._save.finish(step=self._step, batches=self._batches)

    @property
    def epoch(self) -> int:
        """The number of the pass over the data, from 0: of the one that is under way, or that has ended when no
        other was begun. Of a loop that counts by itself what `completed` was told.

        Where nothing was restored yet, this restores, and raises what `steps` raises. A script that asks before
        its first call of `steps` begins its loop with this pass: `for epoch in range(checkpointer.epoch, epochs)`.
        Of a pass that has ended nothing is yielded, so that what the script does behind it is done.
        """
        if self._loop is not None:
            return self._loop.cursor.epoch
        self._restore()
        self._passes.begins_here()
        return self._passes.cursor.epoch

    @property
    def position(self) -> int:
        """How many batches of the pass `epoch` each rank has taken, rounded down in a world of another size: what
        a loop that counts by itself passes over. Raises as `epoch` does.
        """
        if self._loop is not None:
            return self._loop.cursor.each(self._takers)
        self._restore()
        return self._passes.position

    @property
    def _passes(self) -> DataPlace:
        """Where a loop of `steps` is."""
        if self._place is None:
            raise InvalidInput(Problem("steps", "called after resume", "let one of the two count the steps"))
        return self._place

    # For a loop that counts by itself

    def resume(self, *, until: int | None = None) -> int:
        """Restore; the last step that is complete, 0: none. For a loop that counts its steps by itself: it calls
        `completed` after each of them, and `finish` once the last one is complete, step `until`.

        Where the state comes from another replica group nothing is restored, and what is returned means nothing.
        The random numbers go on where they were: what the loop draws comes after it.

        Raises what `steps` raises, and InvalidInput for a loss to compare by (`equivalence`) and, in replica
        groups, data whose state is not the same for all ranks (`counts_globally`).
        """
        if self.equivalence is not None:
            fix = "leave it out: it needs the batches, which only Checkpointer.steps sees"
            raise InvalidInput(Problem("equivalence", getattr(self.equivalence, "__name__", "given"), fix))
        whole = self.run.assignment
        self._place = None
        if self.data is not None:
            self._place = DataPlace(self._group.rank, self._group.world_size, self.data, at_once=True)
            if whole.group is not None and not self._place.counts_globally:
                fix = "give it counts_globally = True if its state is right for any rank, or leave it out"
                raise InvalidInput(Problem("data", type(self.data).__name__, fix))
        self._loop = LoopPlace()
        if self._part.restore.tier is Tier.PEER:
            self._asked = self._look()
            self._rate = LearningRate(self.optimizer, self.scheduler)
            self.run.watch(self.model)
            self._is_restored = True
        else:
            self._begin(until)
            self._continue_random()
        self._loop.moved = self._has_moved
        assert self._rate is not None
        self._rate.before(self._loop.step + 1)
        return self._loop.step

    @property
    def batch(self) -> int:
        """The number of the batch that the next step takes, from 1: as that of the step, but for batches that the
        job passes over. The same on all ranks.
        """
        return 1 if self._loop is None else self._loop.batches + 1

    @property
    def copied(self) -> Mapping[str, Stateful]:
        """What belongs to the state beside model and optimizer, by name: for who copies it to another group."""
        named: dict[str, Stateful | None] = {"scheduler": self.scheduler, "scaler": self.scaler}
        named |= {"data": self._place, "loop": self._loop, "asked": self._asked}
        named |= {f"extra.{name}": each for name, each in (self.extra or {}).items()}
        return {name: each for name, each in named.items() if each is not None}

    def add(self, name: str, more: Stateful) -> None:
        """`more` belongs to the state as well. Before `resume`."""
        self.extra = {**(self.extra or {}), name: more}

    def completed(self, step: int, *, epoch: int | None = None) -> None:
        """`step` is complete, and the run has been told of it: keep what is due. On all ranks, after each step.

        `epoch` is the number of the pass that its batch is of, the same on all ranks; None: of the same pass as
        the batch before. Raises as `steps` does, and InvalidInput for a step that is not the next one.
        """
        loop, rate = self._loop, self._rate
        if loop is not None and step == loop.step == self._copied_at:
            return  # the group that the state was copied from had told of it
        if loop is None or rate is None or step != loop.step + 1:
            next_one = "call resume first" if loop is None else f"the next one is {loop.step + 1}"
            raise InvalidInput(Problem("step", step, f"tell of every step, in order: {next_one}"))
        loop.completed(step, self._ranks, epoch, takers=self._takers)
        if self._saves_for_all:
            self._take_over(parent=step - 1)
            taken = loop.taken // self._group.world_size
            if self._policy is not None and self._policy.completed(step=step, batches=taken):
                self.run.phase(Phase.FORWARD)  # the loop may tell of none
        rate.before(step + 1)

    def finish(self) -> None:
        """The last step is complete: see to it that it is saved. Raises as `steps` does."""
        loop = self._loop
        if loop is None or not self._saves_for_all:
            return
        self._take_over(parent=None)
        if self._save is not None:
            self._save.finish(step=loop.step, batches=loop.taken // self._group.world_size)

    @property
    def _saves_for_all(self) -> bool:
        """Whether the ranks of this process's replica group save; without groups they all do."""
        group = self.run.assignment.group
        return group is None or group.index == 0

    @property
    def _ranks(self) -> int:
        """How many ranks train, of all replica groups."""
        group = self.run.assignment.group
        return self._group.world_size if group is None else group.size * group.count

    @property
    def _takers(self) -> int:
        """How many of them take different batches, as far as can be said without the data."""
        return self._ranks * self._dealing.takers() // self._group.world_size

    def _take_over(self, parent: int | None) -> None:
        """The replica group that has saved until now is gone. What it saved up to step `parent` is of the history
        that goes on; None: all of it. Collective; of a storage that is away the log tells, and the next step asks
        again.
        """
        if self._policy is not None or self.storage is None or self.run.rehearsed_from is not None:
            return
        whole, restore = self.run.assignment, self._part.restore
        try:
            opening = open_together(self.storage, self._group, round=whole.round, restore=restore)
        except Unavailable as error:
            _LOG.warning("this replica group is to save, and cannot yet round=%d reason=%s", whole.round, error)
            return
        if parent is None and self._loop is not None:
            parent = self._loop.step
        self._get_ready(self._state(), opening, Position(step=parent))

    def _take_place(self, loop: LoopPlace, position: Position, skip: int) -> None:
        """After a restore. The number of the batch does not change with that of the ranks."""
        if loop.step != (position.step or 0):  # saved by a loop of `steps`, or nothing was restored
            loop.batches = position.saved_batches
            loop.cursor = Cursor(0, position.batches * self._takers)
        loop.step, loop.batches = position.step or 0, loop.batches + skip
        loop.taken = position.batches * self._group.world_size
        loop.pass_over(skip, self._ranks, takers=self._takers)

    def _has_moved(self) -> None:
        """The state was copied from another replica group, which has made every cut for the step that is next."""
        if self._rate is not None and self._loop is not None:
            self._copied_at = self._loop.step
            self._rate.go_on(self.run.assignment.restore.cuts(), self._loop.step + 1, has_all=True)

    def close(self) -> None:
        """Wait for the save in flight and give back what the ranks talked over. Raises as `steps` does. The log
        says it where every call of `steps` was for a pass that is over, so that nothing was trained, and where the
        last one was left at a step, by `break`, so that this is not saved.
        """
        if self._aside is not None and self._part.rank == 0:
            said = "nothing was trained: the loop ended before its epoch epoch=%d step=%d"
            _LOG.warning(said, self.epoch, self._step)
        if self._is_left and self._save is not None and self._part.rank == 0:
            said = "the loop was left at a step, which is not saved step=%d; let it end by itself, with until="
            _LOG.warning(said, self._step)
        if self._save is not None:
            self._save.wait()
        self._group.close()

    def _begin(self, until: int | None) -> None:
        """Restore, unless that was done, and tell of it, unless that was done."""
        self._restore()
        if self._tells is not None:
            self._tells(until=until)
            self._tells = None
            self.run.watch(self.model)  # who watches it counts steps from what was restored

    def _restore(self) -> None:
        """Once: restore, or find that there is nothing to restore, and get ready for this round's saves."""
        if self._is_restored:
            return
        self._asked = self._look()
        state = self._state()
        if (order := fit.ordered(os.environ)) is not None:
            fit.answer(order, state, self._part.rank, self._part.world_size)
        part, restore = self._part, self._part.restore
        opening = Opening(token="")
        if self.storage is not None:
            opening = open_together(
                self.storage, self._group, round=part.round, restore=restore, enters=self._saves_for_all
            )
        self._opening = opening
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
        if self.run.rehearsed_from is None and self._saves_for_all:
            self._get_ready(state, opening, position)
        if part.rank == 0 and self.storage is not None and self._saves_for_all:
            self.run.enclosed(position.step, read_enclosed(self.storage, opening.line, position))
        self._go_on_from(position)
        self._is_restored = True

    def _put_back(self) -> None:
        """What the script has changed in passes that are over is as it was restored. Collective; raises as `steps`
        does.
        """
        aside, self._aside = self._aside, None
        if aside is None:
            return
        if self._group.any(aside.is_touched()):
            if self._part.rank == 0:
                said = "restored once more: the script changed the model between epochs that are over step=%d"
                _LOG.info(said, self._step)
            state = replace(self._state(), data=None, equivalence=None, settings=None)
            again = restore_newest(state, self._group, self._part, storage=self.storage, opening=self._opening)
            if again.step != self._step:
                found = "nothing" if again.step is None else f"step {again.step}"
                raise NothingToRestore(f"step {self._step} was restored, and then {found}: it is damaged now")
        aside.put_back()

    def _look(self) -> Asked:
        """At the settings that the script asks for, before a restore. Raises InvalidInput for `settings` that say
        nothing of them.
        """
        asked = Asked(self.optimizer, self.scheduler, self.extra or {})
        asked.require_known(self.settings)
        return asked

    def _settle(self, asked: Asked, step: int | None, factor: float) -> None:
        """Which settings hold, and tell of those that differ."""
        found = asked.settle(self.settings, factor)
        self.run.configure({"in force": told(found)})
        differing = {name: each for name, each in shown(found).items() if each.differs}
        if not differing or self._part.rank != 0:
            return
        says = "; ".join(f"{name}: {each}" for name, each in differing.items())
        overruled = next((name for name, each in differing.items() if each.holds is Side.CHECKPOINT), None)
        fix = (
            ""
            if overruled is None
            else f'; Checkpointer(..., settings={{"{overruled}": "script"}}) takes the script\'s'
        )
        _LOG.warning("the script asks for other settings than the checkpoint has step=%d %s%s", step, says, fix)

    def _go_on_from(self, position: Position) -> None:
        """After a restore."""
        restore, is_memory = self._part.restore, position.tier is Tier.MEMORY
        rate = LearningRate(self.optimizer, self.scheduler)
        self._tells = partial(
            self.run.restored,
            position.step,
            position.skipped,
            tier=position.tier,
            healed=position.healed,
            follows=(Follows.BATCHES, *([Follows.LEARNING_RATE] if rate.is_reachable else [])),
        )
        # A snapshot of memory is younger than what was gone back to, and has it all behind it.
        skip = 0 if is_memory else restore.batches_to_skip(position.step)
        done = restore if is_memory else restore.settled(position.step or 0)
        rate.go_on(done.cuts(), position.step or 0, has_all=is_memory)
        if self._asked is not None:
            self._settle(self._asked, position.step, rate.factor)
        self._rate, self._to_skip, self._position = rate, skip, position
        self._step, self._batches = position.step or 0, position.batches + skip
        if self._place is not None and position.step is not None:
            each = self._place.restored(
                batches=position.saved_batches, saved_world_size=position.saved_world_size, begun=position.begun
            )
            self._batches = each + skip
        if self._loop is not None:
            self._take_place(self._loop, position, skip)

    def _state(self) -> TrainingState:
        return TrainingState(
            model=self.model,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            scaler=self.scaler,
            data=self._place,
            extra=self.extra or {},
            equivalence=self._equivalence,
            loop=self._loop,
            settings=self._asked,
            allowed=Allowed(tuple(self.may_be_missing), tuple(self.may_be_left_over)),
        )

    def _open_data(self, data: Iterable[Batch]) -> Iterator[Batch]:
        """Batches from where training goes on; once that is reached, random numbers go on where they were."""
        place = self._passes
        behind = place.open(data)
        if place.cursor.is_over:
            if self._part.rank == 0:
                _LOG.info("no batch is left of this pass epoch=%d step=%d", place.cursor.epoch, self._step)
            self._continue_random()
            self._position = None
            return iter(())
        source, left = place.through(data, behind)
        left += self._to_skip - sum(1 for _ in itertools.islice(source, self._to_skip))
        skips_left = left if place.carries else min(left, self._to_skip)
        place.took(self._to_skip - skips_left)
        self._to_skip = skips_left
        if not skips_left:
            self._continue_random()
            self._position = None
        return source

    def _continue_random(self) -> None:
        whole = self.run.assignment
        if self._position is not None and self._position.random and not self._saves_for_all:
            # The saved ones are of the ranks of one replica group: in every other they are others.
            size = whole.world_size
            randomness.reseed(randomness.derive_seed(self._position.random, rank=whole.rank, world_size=size))
        elif self._position is not None:
            randomness.continue_from(
                self._position.random,
                self._position.saved_world_size,
                rank=self._group.rank,
                world_size=self._group.world_size,
            )

    def _get_ready(self, state: TrainingState, opening: Opening, position: Position) -> None:
        """For the snapshots and saves of this round."""
        run, part, storage, parent = self.run, self._part, self.storage, position.step
        report = None
        if storage is not None and part.rank == 0:
            report = StorageReport(run, opening, uri=storage.uri, damaged=position.damaged)
            report.restored(opening.line, parent)
        memory = open_memory(part, self._group, parent=parent)
        if storage is None and memory is None:
            return
        capture = Capture(
            state,
            self._group,
            memory,
            remembered=run.snapshotted,
            is_finite=run.is_finite,
            parameters_finite=run.parameters_finite,
        )
        capture.require_storable()

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


def _count(field: str, given: object) -> int:
    """Also of NumPy's numbers, and of what a division made whole. Raises InvalidInput."""
    try:
        number = operator.index(given)  # type: ignore[arg-type]  # that is asked here
    except TypeError:
        number = int(given) if isinstance(given, float) and given.is_integer() else 0
    if number < 1:
        raise InvalidInput(Problem(field=field, value=given, fix="write at least 1"))
    return number
