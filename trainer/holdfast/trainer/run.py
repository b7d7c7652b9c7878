"""`Run`: what a training script holds. It publishes, enters rounds and leaves them, in one process."""

import contextlib
import gc
import logging
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from enum import Enum

from torch.nn import Module

from holdfast.api.control import Assignment, Entered, Finished, RoundLeft
from holdfast.api.membership import CheckpointCommitted, CollectiveFailed, Restored
from holdfast.api.rankrecord import UNKNOWN_INT, Phase
from holdfast.api.round import Tier
from holdfast.trainer.collective_error import is_collective_failure
from holdfast.trainer.control import Control
from holdfast.trainer.ended import RoundEnded
from holdfast.trainer.group import Meeting, NotFormed, RoundGroup, default_backend
from holdfast.trainer.host import PATIENCE_S, Alone, Host, Launcher
from holdfast.trainer.record import open_record
from holdfast.trainer.scalar import Number, Scalar
from holdfast.trainer.side import SideThread
from holdfast.trainer.stay import Stay
from holdfast.trainer.surroundings import Mode, surroundings_of
from holdfast.trainer.watched import AfterStep, after_step

logger = logging.getLogger(__name__)

ERROR_TEXT_CHARACTERS = 2000
GROUP_TIMEOUT_S = 600.0
"""How long a collective waits at most. Only a net below the watchdog, which notices a hang within seconds; the
first collectives of a round may wait for the slowest rank to load its data."""


class Departure(Enum):
    """How a stay in a round came to its end."""

    FINISHED = "finished"  # the training function returned on every rank
    LEFT = "left"  # the round ended first; another will follow


class Run:
    """One training process: under a Holdfast launcher, under stock torchrun, or started by hand.

    Create it once, at the start of the script, and hand the training function to `enter`. The environment is
    read here and nowhere else. Under a launcher the constructor connects to it.

    Args:
        backend: of the process group; NCCL where CUDA is available, else gloo.
        timeout_s: of the process group's collectives.
        environment: instead of the process's own.

    Raises InvalidInput when the environment contradicts itself, Unavailable when the launcher does not answer.
    """

    def __init__(
        self,
        *,
        backend: str | None = None,
        timeout_s: float = GROUP_TIMEOUT_S,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        surroundings = surroundings_of(os.environ if environment is None else environment)
        self._backend = backend or default_backend()
        self._timeout_s = timeout_s
        is_torchrun = surroundings.mode is Mode.TORCHRUN
        self._meeting = Meeting.ENVIRONMENT if is_torchrun else Meeting.ENDPOINT
        self._run_directory = surroundings.run_directory
        self._corruptible = surroundings.corruptible
        self._after_step: tuple[AfterStep, ...] | None = None
        self._record_rank = UNKNOWN_INT
        self._record = open_record(None, UNKNOWN_INT)
        self._loss = Scalar()
        self._grad_norm = Scalar()
        self._stay: Stay | None = None
        self._last_stay: Stay | None = None
        self._control = Control(surroundings.control_path) if surroundings.control_path else None
        self._launcher = Launcher(self._control, pid=os.getpid()) if self._control else None
        self._host: Host = self._launcher or Alone(surroundings.only_assignment())

    # What the training loop says

    def step(
        self,
        step: int,
        *,
        loss: Number | None = None,
        grad_norm: Number | None = None,
        tokens: int = UNKNOWN_INT,
    ) -> None:
        """Step `step` is complete: call this after `optimizer.step()`, once per step.

        `loss` and `grad_norm` may be tensors of one element; one on an accelerator is published a step late
        rather than waited for. `tokens` are this rank's in this step. Costs a few microseconds.

        Raises RoundEnded when the round is over.
        """
        self._record.step(step, self._loss.take(loss), self._grad_norm.take(grad_norm), tokens)
        if self._after_step:
            for complete in self._after_step:
                complete(step)
        self._here().check()

    def watch(self, model: Module, *, part: str = "") -> None:
        """`model` is what this round trains: `step` fingerprints its parameters as often as the job wants.

        Ranks that hold the same of the model must hold the same bits; one that does not has been corrupted. What
        a rank holds is taken from the names and shapes of the parameters, and of a DTensor from its shards. Where
        ranks hold different shards in plain tensors (tensor parallelism without DTensor), give each its own
        `part`, such as "tensor-parallel 3". The first call of a round counts; a Checkpointer makes it otherwise.
        """
        if self._after_step is None:
            self._after_step = after_step(
                model,
                self.assignment,
                part=part,
                publish=self._record.fingerprint,
                corruptible=self._corruptible,
            )

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
        self._here().check()

    def is_current(self) -> bool:
        """True while this process is in a round that has not ended. Any thread."""
        return self._stay is not None and not self._stay.is_over

    @property
    def assignment(self) -> Assignment:
        """This process's part in the round. Raises RuntimeError before the first one was entered."""
        return self._here().assignment

    # What the checkpoint library says

    def save_due(self, step: int) -> int | None:
        """Step `step` is complete: the number of the request that a save of it now answers; None: none is due.

        The watchdog asks for one more checkpoint before it stops a round on purpose. To be called after every
        step, by all ranks; they are given the number at the same step. While nothing is wanted it costs a
        fraction of a microsecond.
        """
        saves = self._here().saves
        if saves.newest == saves.answered:
            return None
        return saves.due(step, self._here().group.store, self._record.step_time_s)

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
    ) -> None:
        """This rank begins from `step` (None: afresh), out of `tier`, having passed over the damaged ones in
        `skipped`; `healed` is what was damaged and had from elsewhere.
        """
        part = self.assignment
        self._here().goes_on_from(step)
        self._host.say(
            Restored(round=part.round, rank=part.rank, step=step, skipped=skipped, tier=tier, healed=healed)
        )

    def verified(self) -> int | None:
        """The last step after which all replicas are known to have held the same, None: not known of any.

        A checkpoint of that step or before is what a rewind goes back to: the newest of them is to be kept. Any
        thread.
        """
        return None if self._stay is None else self._stay.verified

    # Rounds

    def enter(self, train: Callable[[Assignment], object]) -> None:
        """Call `train` with this process's part in a round, again for every further round, until it returns.

        `train` finds a default process group and must build everything else itself: model, optimizer, data.
        When its round ends before it returns, whatever collective it waits in raises, its process group is
        destroyed, and it is called anew, in the same process, with the next assignment. Connections of other
        libraries that were opened inside `train` are closed as well.

        An exception that is no peer's fault propagates. Raises Unavailable when a further round is needed and
        the launcher is gone.
        """
        # What is alive now stays alive. Passing over it makes the collection after each round cheap.
        gc.collect()
        gc.freeze()
        with SideThread(self._beat, control=self._control, launcher=self._launcher):
            while self._attend(self._host.next_assignment(), train) is Departure.LEFT:
                pass
        if self._control is not None:
            self._control.close()

    def _attend(self, assignment: Assignment, train: Callable[[Assignment], object]) -> Departure:
        stay = self._begin(assignment)
        try:
            departure = self._live(stay, train)
            if departure is Departure.LEFT:
                stay.group.abort()  # Also for background threads of the script that wait in it.
        except BaseException:
            stay.group.drop()
            raise
        finally:
            self._record.phase(Phase.IDLE)
            self._after_step = None  # It holds the model.
            stay.group.close()
            self._host.attend(None)
        if departure is Departure.FINISHED:
            stay.end("finished")
            self._host.say(Finished(round=assignment.round))
            return departure
        self._host.say(RoundLeft(round=assignment.round, step=self._record.last_step))
        # The model of the round is garbage in cycles, which hold its memory, and through its device meshes the
        # process group's connections and threads.
        gc.collect()
        return departure

    def _begin(self, assignment: Assignment) -> Stay:
        if assignment.local_rank != self._record_rank:
            self._record = open_record(self._run_directory, assignment.local_rank)
            self._record_rank = assignment.local_rank
        self._record.begin(assignment)
        self._loss.forget()
        self._grad_norm.forget()
        self._last_stay = self._stay
        group = RoundGroup(assignment, backend=self._backend, timeout_s=self._timeout_s, meeting=self._meeting)
        stay = Stay(assignment, group)
        self._stay = stay
        self._host.attend(stay)
        return stay

    def _live(self, stay: Stay, train: Callable[[Assignment], object]) -> Departure:
        try:
            stay.group.form(stay.check)
            self._let_go_of_last_round()
            self._host.say(Entered(round=stay.assignment.round))
            train(stay.assignment)
            self._record.phase(Phase.IDLE)
            stay.group.barrier()
            stay.check()
            return Departure.FINISHED
        except RoundEnded as ended:
            logger.info("round left round=%d reason=%s", ended.round, ended.reason)
            traceback.clear_frames(ended.__traceback__)
        except Exception as error:
            self._survive(stay, error)
            _clear_frames(error)
        return Departure.LEFT

    def _survive(self, stay: Stay, error: Exception) -> None:
        """Return once the round is over, when `error` came of a round that broke; otherwise raise `error`."""
        raised_at = time.monotonic()
        part = stay.assignment
        if stay.is_over:
            logger.info("round left round=%d error=%s", part.round, error)
            return
        if not (self._host.can_heal() and _is_peers_fault(error, part)):
            raise error
        logger.warning("collective failed round=%d rank=%d error=%s", part.round, part.rank, error)
        self._record.phase(Phase.IDLE)
        text = str(error)[:ERROR_TEXT_CHARACTERS]
        age_s = time.monotonic() - raised_at
        self._host.say(CollectiveFailed(round=part.round, rank=part.rank, age_s=age_s, error=text))
        deadline = raised_at + PATIENCE_S
        while not stay.await_end(0.5):
            if not self._host.can_heal() or time.monotonic() > deadline:
                raise error

    def _let_go_of_last_round(self) -> None:
        """The group stands, so every rank has left the round before, and nobody waits in it."""
        if self._last_stay is not None:
            self._last_stay.group.release()
            self._last_stay = None

    def _beat(self) -> None:
        stay = self._stay
        self._record.beat(UNKNOWN_INT if stay is None else stay.group.collective_sequence())

    def _here(self) -> Stay:
        if self._stay is None:
            raise RuntimeError("this run is in no round: use it inside the function given to Run.enter")
        return self._stay


def _is_peers_fault(error: Exception, assignment: Assignment) -> bool:
    """A group that was not formed cannot be entered as it was assigned, whoever is to blame."""
    if assignment.world_size == 1:
        return False
    return isinstance(error, NotFormed) or is_collective_failure(error)


def _clear_frames(error: BaseException) -> None:
    """Let go of what the frames an exception passed through still hold, the model first of all."""
    link: BaseException | None = error
    while link is not None:
        traceback.clear_frames(link.__traceback__)
        link = link.__cause__ or link.__context__
