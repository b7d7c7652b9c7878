"""`Run`: what a training script holds. It publishes, enters rounds and leaves them, in one process."""

import contextlib
import gc
import logging
import operator
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar

import torch
from torch.nn import Module

from holdfast.api.checkpoint import Standing, StoredCheckpoint
from holdfast.api.control import (
    Assignment,
    Entered,
    Entering,
    Finished,
    FromWorker,
    Reenters,
    RoundLeft,
    round_environment,
)
from holdfast.api.errors import InvalidInput, Problem
from holdfast.api.membership import CheckpointCommitted, CheckpointsStored, Restored, RunDescribed
from holdfast.api.rankrecord import UNKNOWN_INT, Phase
from holdfast.api.round import Follows, Reentry, Tier
from holdfast.api.runmanifest import fitted
from holdfast.api.telemetry import NonFinite
from holdfast.trainer import host
from holdfast.trainer.batches import Batches
from holdfast.trainer.chronicle import Chronicle
from holdfast.trainer.drill import Drill
from holdfast.trainer.frameworks import Reentering, forget_round
from holdfast.trainer.gradscaling import scaling
from holdfast.trainer.group import RoundGroup, is_collective_failure, raised_from
from holdfast.trainer.hostcopy import Number
from holdfast.trainer.proofs import Watched
from holdfast.trainer.record import open_record
from holdfast.trainer.rehearsing import Rehearsing
from holdfast.trainer.scalarlog import ScalarLog
from holdfast.trainer.spikeguard import SpikeGuard
from holdfast.trainer.stay import RoundEnded, Stay
from holdfast.trainer.subprocesses import loaders_end_at_once, start_method_kept
from holdfast.trainer.values import StepValues

logger = logging.getLogger(__name__)

GROUP_TIMEOUT_S = 600.0
"""How long a collective waits at most. Only a net below the watchdog, which notices a hang within seconds; the
first collectives of a round may wait for the slowest rank to load its data."""


class Run:
    """One training process: under a Holdfast launcher, under stock torchrun, or started by hand.

    Create it once, at the start of the script, and hand the training function to `enter`. The environment is
    read here and nowhere else. Under a launcher the constructor connects to it.

    Args:
        backend: of the process group; NCCL where CUDA is available, else gloo.
        timeout_s: of the process group's collectives.
        reentry: into which rounds this process may go on. None: into every one, unless a framework is in use that
            is known to keep what belongs to a round. A script that keeps its rank or the number of ranks outside
            of the function it hands to `enter` says `Reentry.SAME_WORLD`; a changed world then gets new processes.
        environment: instead of the process's own, which then is not changed either.

    Raises InvalidInput when the environment contradicts itself, Unavailable when the launcher does not answer.
    """

    entered: ClassVar["Run | None"] = None  # whose training function runs in this process

    def __init__(
        self,
        *,
        backend: str | None = None,
        timeout_s: float = GROUP_TIMEOUT_S,
        reentry: Reentry | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        surroundings = host.surroundings_of(os.environ if environment is None else environment)
        self._backend = backend or ("nccl" if torch.cuda.is_available() else "gloo")
        self.timeout_s = timeout_s
        self._reentering = Reentering(None if reentry is None else Reenters(reentry, "the script says so"))
        self._sets_environment = environment is None and surroundings.mode is host.Mode.ATTACHED
        self._is_torchrun = surroundings.mode is host.Mode.TORCHRUN
        self._run_directory = surroundings.run_directory
        self._corruptible = surroundings.corruptible
        self._watched: Watched | None = None
        self._chronicle = Chronicle()
        self._rehearsal = surroundings.rehearsal
        self._rehearsing: Rehearsing | None = None
        self._record_rank = UNKNOWN_INT
        self._record = open_record(None, UNKNOWN_INT)
        self._values = StepValues(self._record)
        scaling.follow()
        scaling.take()  # what it did in a step that the round before did not complete
        self.log = ScalarLog()  # run.log(step, name=value, ...): see ScalarLog.__call__
        self._batches = Batches()
        self._stay: Stay | None = None
        self._drill: Drill | None = None
        self._last_word: NonFinite | None = None  # of the round that was finished
        self._last_stay: Stay | None = None
        path = surroundings.control_path
        self._launcher = host.Launcher(host.Control(path), pid=os.getpid()) if path else None
        self._host = self._launcher or host.Alone(surroundings.only_assignment())
        self.say: Callable[[FromWorker], None] = self._host.say  # to the launcher, if there is one; any thread

    # What the training loop says

    def step(
        self,
        step: int,
        *,
        loss: Number | None = None,
        grad_norm: Number | None = None,
        tokens: int = UNKNOWN_INT,
        longest: int = UNKNOWN_INT,
        skipped: bool = False,
    ) -> None:
        """Step `step` is complete: call this after `optimizer.step()`, once per step.

        `loss` is this rank's own, before it is reduced: in a mean nobody sees whose is wrong. It and `grad_norm`
        may be tensors of one element; one on an accelerator is published a step late rather than waited for. One
        that is NaN or infinite is a fault, unless the optimizer did not run: because `should_skip` said so, or the
        script left the step out by itself on all ranks (`skipped`), as a gradient scaler does; what torch's own
        (`torch.amp.GradScaler`) leaves out is known unsaid. `tokens` are this
        rank's in this step, `longest` is its longest sequence: who has more to do has no slow machine.

        Raises RoundEnded when the round is over, InvalidInput for a step that is no whole number and a loss or a
        norm that is no number.
        """
        if type(step) is not int:
            step = _whole("step", step)
        if self._drill is not None:
            loss, grad_norm = self._drill.step(step, loss, grad_norm)
        if skipped:
            self._values.skips.left_out(step)
        if scaling.is_used:
            self._values.scaled(step, scaling.take())
        self._record.step(step, *self._values.take(step, loss, grad_norm), tokens, longest)
        if self._batches.is_open:
            self._batches.completed(step, self._record)
        if self._watched is not None:
            self._watched.completed(step)
        if self._rehearsing is not None:
            self._rehearsing.completed(step, loss, grad_norm)
        self.log.completed()
        self.stay.completed()

    def batch(self, step: int, samples: object, *, tokens: int | None = None) -> None:
        """This rank takes `samples` for `step`; of several calls for a step, all of them. Before `step`.

        Tensors in host memory or lists of strings, in mappings, tuples or lists, with samples first; `tokens`
        is how many there are, where the first tensor is not all tokens. So the watchdog finds a batch that comes
        twice and a restart at the wrong sample (docs/detectors.md). `Checkpointer.steps` does it unasked. The log
        tells once of a batch whose samples cannot be told, which is compared with no other.

        Raises InvalidInput for tensors on a device, and where there is nothing that has samples.
        """
        self._batches.take(step, samples, tokens=tokens)

    def took(self, step: int, samples: object) -> None:
        """As `batch`, for a loop that does not know what it hands on: the log tells once of what has no print."""
        self._batches.take_if_possible(step, samples)

    def epoch(self, number: int) -> None:
        """The data of epoch `number` begin: batches of the epochs before may come again.

        Without it, what comes again in order from its first batch on is taken for a further epoch.
        """
        self._batches.epoch(number)

    def pass_begins(self) -> None:
        """As `epoch`, for a loop that does not know which one it is."""
        self._batches.forget()

    def loader(self, *, workers: int) -> None:
        """This rank's data come from so many processes of a loader; 0: the training process reads them itself.

        `Checkpointer.steps` finds it out from torch's DataLoader. Raises InvalidInput when it is negative.
        """
        if workers < 0:
            raise InvalidInput(Problem(field="workers", value=workers, fix="write 0 or more"))
        self._record.workers(workers)

    def should_skip(
        self,
        step: int,
        *,
        loss: Number | None = None,
        grad_norm: Number | None = None,
        guard: SpikeGuard | None = None,
    ) -> bool:
        """Whether to leave out `optimizer.step()` at `step`, the same on every rank: on one of them `loss` or
        `grad_norm` is NaN or infinite, or the norm is a spike to `guard`, which learns from the others.

        Call it on every rank, after the backward pass and before the optimizer, and `step` afterwards as always.
        It reduces one number over the round's group and waits for the device. A step left out is told of and does
        no harm; `SKIPS_IN_A_ROW` that are not finite one after the other count as a fault.
        """
        return self._values.skips.agree(step, loss, grad_norm, guard)

    def watch(self, model: Module, *, part: str = "") -> None:
        """`model` is what this round trains: `step` fingerprints its parameters as often as the job wants, and
        proves that this rank's device and memory are sound (docs/fingerprints.md).

        What a rank holds is taken from the names and shapes of the parameters, and of a DTensor from its shards.
        Where ranks hold different shards in plain tensors (tensor parallelism without DTensor), give each its own
        `part`, such as "tensor-parallel 3". The first call of a round counts; a Checkpointer makes it otherwise,
        with its `model`. Several models that train are given as one: `watch(ModuleList([generator, critic]))`.
        """
        if self._watched is None:
            assignment, say, history = self.assignment, self._host.say, self._chronicle.history
            record, corruptible = self._record, self._corruptible
            self._watched = Watched(
                model, assignment, part=part, record=record, corruptible=corruptible, history=history
            )
            self._chronicle.begin(assignment, told=lambda told: say(RunDescribed(told.round, fitted(told))))
            if self._rehearsing is not None:
                self._rehearsing.watch(model, self.stay.restored_step or 0)

    def configure(self, settings: Mapping[str, object]) -> None:
        """The script's settings, for comparing runs: `run.configure(vars(arguments))`. Nested mappings are taken
        apart; what has a secret's name is left out. To be called before the first step (docs/compare-runs.md).
        """
        self._chronicle.configure(settings)

    def phase(self, phase: Phase) -> None:
        """`phase` begins. Optional: a hang can then be told apart by where in the step it happened."""
        self._record.phase(phase)

    @contextlib.contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """`phase` for the `with` block, then the phase before it again."""
        before = self._record.current_phase
        self._record.phase(phase)
        try:
            yield
        finally:
            self._record.phase(before)

    def check(self) -> None:
        """Raises RoundEnded when the round is over. For loops that take long without a step."""
        self.stay.check()

    def is_current(self) -> bool:
        """True while this process is in a round that has not ended. Any thread."""
        return self._stay is not None and not self._stay.is_over

    @property
    def assignment(self) -> Assignment:
        """This process's part in the round. Raises RuntimeError before the first one was entered."""
        return self.stay.assignment

    # What the checkpoint library says

    @property
    def drill(self) -> Drill | None:
        """What a drill does to this rank in the current round; None, as a rule."""
        return self._drill

    def save_due(self, step: int) -> int | None:
        """Step `step` is complete: the number of the request that a save of it now answers; None: none is due.

        To be called after every step, by all ranks; they are given the number at the same step. While nothing is
        wanted it costs a fraction of a microsecond.
        """
        saves = self.stay.saves
        if saves.newest == saves.answered:
            return None
        return saves.due(step, self.stay.group.store, self._record.step_time_s)

    def committed(
        self,
        step: int,
        uri: str,
        *,
        round: int | None = None,
        wanted: int | None = None,
        stall_s: float | None = None,
        took_s: float | None = None,
    ) -> None:
        """A checkpoint of `step` was committed at `uri`, saved in `round` (default: the one lived now).

        `wanted` is the request it answers, as `save_due` gave it; `stall_s` is how long training stood still for
        it, `took_s` how long it took, None where nobody measured.

        Any thread. A thread that may outlive its round passes the number it saved in, so that what comes late
        is not taken for the next round's.
        """
        saved_in = self.assignment.round if round is None else round
        self.log.send(self._stay, self._host.say, rest=True)  # what goes on from it will not be logged again
        self._host.say(
            CheckpointCommitted(round=saved_in, step=step, uri=uri, wanted=wanted, stall_s=stall_s, took_s=took_s)
        )

    def snapshotted(self, step: int) -> None:
        """This rank's state after `step` is whole in its node's memory."""
        self._record.snapshotted(step)

    def restored(
        self,
        step: int | None,
        skipped: tuple[str, ...] = (),
        *,
        tier: Tier = Tier.CHECKPOINT,
        healed: tuple[str, ...] = (),
        follows: tuple[Follows, ...] = (),
        until: int | None = None,
    ) -> None:
        """This rank begins from `step` (None: afresh), out of `tier`, having passed over the damaged ones in
        `skipped`; `healed` is what was damaged and had from elsewhere; it trains to step `until` (None: unknown).

        A script that restores by itself says in `follows` that it passes over `part.batches_to_skip(step)` batches
        (`Follows.BATCHES`), and that it multiplies its learning rate by `part.learning_rate_factor(...)` at each
        step (`Follows.LEARNING_RATE`): a job that may go back for its loss is otherwise shown as one that cannot.
        """
        part = self.assignment
        self.stay.goes_on_from(step)
        self._host.say(Restored(part.round, part.rank, step, skipped, tier, healed, follows, until))

    def stored(
        self,
        checkpoints: Sequence[StoredCheckpoint],
        *,
        count: int,
        uri: str,
        round: int | None = None,
        saved: int | None = None,
    ) -> None:
        """Storage at `uri` holds `count` readable checkpoints of the history that goes on, as seen in `round`
        (default: the one lived now): `checkpoints`, newest first, as `api.checkpoint.told_of` bounds them.
        `saved` is the newest step the round had committed by then. Any thread.
        """
        told, seen_in = tuple(checkpoints), self.assignment.round if round is None else round
        self._host.say(CheckpointsStored(round=seen_in, uri=uri, count=count, checkpoints=told, saved=saved))

    def standing(self) -> Standing:
        """What the watchdog says of this history: which checkpoints a rewind goes back to. Any thread."""
        return Standing() if self._stay is None else self._stay.standing

    def is_finite(self) -> bool | None:
        """Whether every loss and gradient norm of this round was finite: see `StepValues.is_finite`."""
        return self._values.is_finite()

    def parameters_finite(self) -> bool | None:
        """Whether all parameters in training of the model that is watched are finite, as far as this rank holds
        them; None: no model is. Whoever saves asks. Where they are not, the job goes back for it, though no loss
        and no gradient norm told. Waits for the device.
        """
        found = None if self._watched is None else self._watched.is_finite()
        if found is False:
            self._values.settle(parameters_finite=False)
        return found

    @property
    def rehearsed_from(self) -> str | None:
        """Where the copy lies that is restored in place of the script's own checkpoints, when steps are only
        trained again to be looked at: nothing is saved then. None, as a rule.
        """
        return None if self._rehearsal is None else self._rehearsal.uri

    def enclosures(self, step: int) -> Mapping[str, bytes]:
        """What lies in a checkpoint of `step` for comparing runs, by file name: how this run was started, what was
        seen of its steps and what it has cost. Rank 0 alone has it. Not for the training thread: it may wait some
        seconds, once.
        """
        return self._chronicle.enclosures(step, self._host.ledger)

    def enclosed(self, step: int | None, files: Mapping[str, bytes]) -> None:
        """Training goes on after `step` (None: afresh); `files` are what `enclosures` gave for the checkpoint."""
        self._chronicle.go_on(step, files)

    # Rounds

    def enter(self, train: Callable[[Assignment], object]) -> None:
        """Call `train` with this process's part in a round, again for every further round, until it returns.

        `train` finds a default process group and must build everything else itself: model, optimizer, data.
        When its round ends before it returns, whatever collective it waits in raises, its process group is
        destroyed, and it is called anew, in the same process, with the next assignment; connections opened
        inside `train` are closed. Under a launcher the environment then holds what a new process would find in it
        (`RANK`, `WORLD_SIZE` and so on), and frameworks that are known to keep it have forgotten it.

        Under a launcher training is over for this process when this has returned. One that ends before that has
        left it, whatever its exit code: the job goes on.

        An exception that is no peer's fault propagates. Raises Unavailable when a further round is needed and
        the launcher is gone.
        """
        # What is alive now stays alive. Passing over it makes the collection after each round cheap.
        gc.collect()
        gc.freeze()
        with host.side_thread(self._beat, self._launcher):
            while not self._attend(self._host.next_assignment(), train):
                pass
        if self._launcher is not None:
            self._launcher.control.close()

    def _attend(self, assignment: Assignment, train: Callable[[Assignment], object]) -> bool:
        """Whether the training function returned on every rank; if not, the round ended first."""
        self._host.say(Entering(round=assignment.round))
        stay = self._begin(assignment)
        try:
            has_finished = self._live(stay, train)
            if not has_finished:
                stay.group.abort()  # Also for background threads of the script that wait in it.
        except BaseException:
            stay.group.drop()
            raise
        finally:
            Run.entered = None
            self._record.phase(Phase.IDLE)
            self.log.send(stay, self._host.say, rest=True)
            if self._watched is not None:
                self._watched.close()
                self._watched = None
            stay.group.close()
            self._host.attend(None)
        if has_finished:
            stay.end("finished")
            self._host.say(Finished(round=stay.assignment.round, nonfinite=self._last_word))
        else:
            self._host.say(RoundLeft(round=stay.assignment.round, step=self._record.last_step))
            # The model of the round is garbage in cycles, which hold its memory, and through its device meshes the
            # process group's connections and threads.
            with loaders_end_at_once():
                gc.collect()
        return has_finished

    def _begin(self, assignment: Assignment) -> Stay:
        if assignment.local_rank != self._record_rank:
            self._record = open_record(self._run_directory, assignment.local_rank)
            self._record_rank = assignment.local_rank
        self._record.begin(assignment, waits_on_host=self._backend == "gloo")
        self._values = StepValues(self._record)
        self.log.begin(assignment, self._record)
        self._batches.forget_open()
        self._chronicle.enter(assignment, self._values.loss, self._values.grad_norm)
        self._last_stay = self._stay
        if self._sets_environment:
            os.environ.update(round_environment(assignment))
        if self._last_stay is not None:
            forget_round(assignment)
        group = self._group_of(assignment)
        stay = self._stay = Stay(assignment, group)
        if self._corruptible is not None:
            self._drill = Drill(self._corruptible, assignment.rank, break_connections=group.abort)
        self._rehearsing = Rehearsing(self._rehearsal, assignment.rank) if self._rehearsal is not None else None
        self._host.attend(stay)
        return stay

    def _group_of(self, part: Assignment) -> RoundGroup:
        return RoundGroup(part, backend=self._backend, timeout_s=self.timeout_s, is_torchrun=self._is_torchrun)

    def _live(self, stay: Stay, train: Callable[[Assignment], object]) -> bool:
        try:
            stay.group.form(stay.check)
            if self._last_stay is not None:
                self._last_stay.group.release()  # Every rank has left the round before, and nobody waits in it.
                self._last_stay = None
            self._host.say(Entered(round=stay.assignment.round))
            self._reentering.begin()  # The launcher takes it from one that has entered.
            self._reentering.say(self.say)
            Run.entered = self
            with start_method_kept():
                train(stay.assignment)
            self._end_training()
            stay.group.barrier()
            stay.check()
            return True
        except RoundEnded as ended:
            logger.info("round left round=%d reason=%s", ended.round, ended.reason)
            with loaders_end_at_once():
                traceback.clear_frames(ended.__traceback__)
        except Exception as error:
            self._survive(stay, error)
            with loaders_end_at_once():
                for link in raised_from(error):  # Their frames still hold the model.
                    traceback.clear_frames(link.__traceback__)
        return False

    def _end_training(self) -> None:
        """No further step comes in this round."""
        self._record.phase(Phase.IDLE)
        looked = None if self._watched is None else self._watched.is_finite()
        self._last_word = self._values.settle(parameters_finite=looked)
        self.log.finish()

    def _survive(self, stay: Stay, error: Exception) -> None:
        """Return once the round is over, when `error` came of a round that broke; otherwise raise `error`."""
        raised_at = time.monotonic()
        part = stay.assignment
        if stay.is_over:
            logger.info("round left round=%d error=%s", part.round, error)
            return
        if not (self._host.can_heal() and part.world_size > 1 and is_collective_failure(error)):
            raise error
        self._record.phase(Phase.IDLE)
        self._host.say(host.failure_of(part, error))
        deadline = raised_at + host.PATIENCE_S
        while not stay.await_end(0.5):
            if (later := stay.later) is not None:  # its replica group was kept: the fault is of that round as well
                stay.taken_up(later)
                self._host.say(host.failure_of(later, error, age_s=time.monotonic() - raised_at))
            if not self._host.can_heal() or time.monotonic() > deadline:
                raise error

    def _beat(self) -> None:
        stay = self._stay
        self._record.beat(UNKNOWN_INT if stay is None else stay.group.collective_sequence())
        if stay is not None and not stay.is_over:
            self._reentering.say(self.say)
        self.log.send(stay, self.say)

    # What `Replicas` does

    def take_up(self, part: Assignment) -> None:
        """The replica group goes on in the round of `part`, and leaves nothing."""
        self.log.send(self.stay, self.say, rest=True)
        self.stay.taken_up(part)
        self._record.begin(part, waits_on_host=self._backend == "gloo")
        self.log.begin(part, self._record)
        if self._sets_environment:
            os.environ.update(round_environment(part))
        self.say(Entered(round=part.round))

    @property
    def stay(self) -> Stay:
        """This process's stay in the round. Raises RuntimeError before the first one was entered."""
        if self._stay is None:
            raise RuntimeError("this run is in no round: use it inside the function given to Run.enter")
        return self._stay


def _whole(field: str, value: object) -> int:
    """Raises InvalidInput."""
    try:
        return operator.index(value)  # type: ignore[arg-type]  # that is asked here
    except TypeError:
        raise InvalidInput(Problem(field, value, "give a whole number")) from None
