"""Replica groups in the training loop: gradients are averaged over the groups that are there, step by step.

Within a group the script does what it likes: FSDP2, tensor parallelism, one rank. Between groups there is one
average of the gradients at the end of a step. A group that lost a member is left out from the same step on; nobody
else leaves the loop. When it is back it copies its state from a group that has it, at a step boundary.

A step counts in a group when all its ranks have the average: they vote. The groups need not agree on that: one
that did not get it, when another did, is a step behind, and copies like one that comes back. So no group ever has
parameters of its own.

Source: per-step membership, a vote for each step, and the state from a peer: https://arxiv.org/abs/2602.00277
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from types import TracebackType
from typing import Final, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from holdfast.api.control import Assignment, AtTheDoor
from holdfast.api.errors import InvalidInput, Problem
from holdfast.api.rankrecord import Phase
from holdfast.trainer import host
from holdfast.trainer.across import Across
from holdfast.trainer.averaging import Average, Says, gradient_of
from holdfast.trainer.group import NotFormed, is_collective_failure
from holdfast.trainer.outerstep import OuterState, OuterStep
from holdfast.trainer.peercopy import Stateful, TrainingState
from holdfast.trainer.run import Run
from holdfast.trainer.torchtensors import local_of

logger = logging.getLogger(__name__)

NOBODY_HAS_IT: Final = "no replica group is left that has the training state"


class Holds(IntEnum):
    """What a group has of the training state."""

    NOTHING = 0  # it is being formed, or was just copying
    START = 1  # what the script built or restored: as good as that of every other group of its round
    ALL = 2  # it has trained, or copied


class NobodyHasIt(RuntimeError):
    """Every group that had the state is gone; the round fails, and the next one restores."""


class AtDifferentSteps(RuntimeError):
    """The groups do not do the same: their scripts differ, or this library has a fault."""


class Checkpoints(Protocol):
    """What restores and saves the state of every group. `holdfast.checkpoint.Checkpointer` is one."""

    model: Module
    optimizer: Optimizer

    @property
    def copied(self) -> Mapping[str, Stateful]:
        """What belongs to the state beside model and optimizer, by name."""

    def add(self, name: str, more: Stateful, /) -> object:
        """`more` is saved and restored as well."""

    def resume(self, *, until: int | None) -> int:
        """Restore; the last step that is complete. The loop ends with step `until`."""

    def finish(self) -> object:
        """Called on every rank once the last step is complete in all groups: it is saved when this returns."""


class Replicas:
    """One rank's part in what its group has in common with the others. A context manager, for the training loop:

        with Replicas(run, model=model, optimizer=optimizer, step=restored) as replicas:
            while replicas.step < steps:
                batch = data(replicas.step + 1, replicas.index, replicas.count)
                optimizer.zero_grad()
                loss = model(batch)
                loss.backward()
                if replicas.average():
                    optimizer.step()
                    run.step(replicas.step, loss=loss)

    Under a job without replica groups, and without a launcher, `average` only counts.

    `resumed` makes it with a Checkpointer, that saves and restores.

    Args:
        model: with its gradients; what is trained, and copied.
        optimizer: as above. Its parameters are those of `model`.
        also: what else belongs to the state, by name: a schedule, a loader, averaged weights.
        step: the last step that is complete in what the script restored, the same in all groups.
        outer: groups train by themselves, and average after so many steps how far they came: call `stepped` after
            `optimizer.step()`. None: they average the gradients of every step. An `OuterState` where that was
            saved and restored.

    Raises InvalidInput for a model that trains nothing, or complex numbers, for a negative step, and for what of
    the state cannot be copied.
    """

    def __init__(
        self,
        run: Run,
        *,
        model: Module,
        optimizer: Optimizer,
        also: Mapping[str, Stateful] | None = None,
        step: int = 0,
        outer: OuterStep | OuterState | None = None,
    ) -> None:
        if step < 0:
            raise InvalidInput(Problem("step", step, "give the last step that is complete, 0 for none"))
        self._parameters = list(model.parameters())
        if not any(each.requires_grad for each in self._parameters):
            raise InvalidInput(Problem("model", type(model).__name__, "give a model with parameters that train"))
        self._run, self._stay = run, run.stay
        self._outer = OuterState(outer, model) if isinstance(outer, OuterStep) else outer
        if self._outer is not None:
            _require_equal_when_compared(run.assignment.fingerprint_every, self._outer.wanted)
        more = self._outer.tensors() if self._outer is not None else ()
        self._state = TrainingState(model, optimizer, also or {}, more)
        self._state.check()
        self._checkpoints: Checkpoints | None = None
        self._until: int | None = None  # the last step, where that is known
        self._across: Across | None = None
        self._left: list[Across] = []
        self._average = Average(self._parameters)
        self._holds, self._moves, self._is_done = Holds.START, True, False
        self._saved_in: int | None = None  # the round in which the last step was found to be saved
        self._came_to: int | None = None
        self.step = step
        """The last step that is complete, or that `average` has just returned the gradients of."""
        group = self._part.group
        self._is_late = group is not None and group.index is None
        if self._is_late:
            self._holds = Holds.NOTHING
        elif group is not None:
            while not self._attempt(lambda across: None):
                pass

    @classmethod
    def resumed(
        cls, run: Run, checkpoints: Checkpoints, *, until: int, outer: OuterStep | None = None
    ) -> "Replicas":
        """With the state that the Checkpointer restores, in every group, and saves, in one of them: its model and
        optimizer, and all else that it was made with. The loop ends with step `until`, and calls
        `Checkpointer.completed` after each step; the last step is saved when the `with` block ends.

        Raises what the constructor and `Checkpointer.resume` raise.
        """
        state = OuterState(outer, checkpoints.model) if outer is not None else None
        if state is not None:
            checkpoints.add("outer", state)
        step = checkpoints.resume(until=until)
        also = {name: each for name, each in checkpoints.copied.items() if each is not state}
        made = cls(
            run,
            model=checkpoints.model,
            optimizer=checkpoints.optimizer,
            also=also,
            step=step,
            outer=state,
        )
        made._checkpoints, made._until = checkpoints, until
        return made

    @property
    def _part(self) -> Assignment:
        return self._stay.assignment

    @property
    def count(self) -> int:
        """How many groups train now."""
        return self._part.group.count if self._part.group is not None else 1

    @property
    def index(self) -> int:
        """Which of them this one is; of a group that is being formed the last. It changes when others leave."""
        group = self._part.group
        return 0 if group is None else group.count - 1 if group.index is None else group.index

    def average(self) -> bool:
        """The gradients become their mean over the groups that train; `step` is the step they are of.

        To be called on every rank after the backward pass. It waits for the other groups, and when one of them is
        lost averages anew over those that are left: the gradients of this rank are kept. False: there is nothing
        to step with, because the others have finished; `step` is theirs.

        What belongs behind it: unscaling, clipping, whether to leave out the step (`Run.should_skip`).

        Raises RoundEnded when the round is over, InvalidInput for a sparse gradient, and what the group's own
        collectives raise.
        """
        if self._part.group is None or self._outer is not None:
            if self._part.group is not None and not self._is_late:
                self._keep_up()
            self.step += 1
            return True
        if self._is_late:
            self._wait_at_the_door()
        while not self._attempt(self._reduce):
            pass
        return self._take_average()

    def stepped(self) -> None:
        """With outer steps: the optimizer has stepped. When an outer one is due, the parameters become what all
        groups make of them together. Raises what `average` raises.
        """
        if self._part.group is None or self._outer is None:
            return
        if self._is_late:
            self._wait_at_the_door()
        elif self.step % self._outer.wanted.every and self.step != self._until:
            return
        self.step -= 1  # it is complete once the outer step is
        while not self._attempt(self._reduce):
            pass
        if self._average.totals[Says.GIVES]:
            for place, mean in self._average.means():
                self._outer.step(place, mean)
            self.step += 1

    @contextmanager
    def overlapped(self) -> Iterator[None]:
        """Around the step's last backward pass: gradients are sent to the other groups while it goes on. Nobody
        may change them between it and `average`, which takes as long as what is left to be sent.

            with replicas.overlapped():
                loss.backward()

        With outer steps, and where this group has something else to do first, it changes nothing.
        """
        across = self._across
        is_ready = across is not None and across.size > 1 and across.round == self._part.round
        if across is None or not is_ready or self._moves or self._is_late or self._outer is not None:
            yield
            return
        with self._average.early(across):
            yield

    def __enter__(self) -> "Replicas":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The last step is complete: wait until it is so in all groups. One may have to copy it from this one."""
        if kind is None and self._part.group is None and self._checkpoints is not None:
            self._checkpoints.finish()
        elif kind is None and self._part.group is not None and not self._is_late:
            self._end_together()
        self._average.close()
        if self._across is not None:
            self._across.close()
            self._across.release()

    def _end_together(self) -> None:
        """Until all groups know of each other that they have completed the last step, and that it is saved."""
        self._is_done = True
        while True:
            while not self._attempt(self._reduce):
                pass
            if self._average.totals[Says.SAVED] == self.count:
                return
            if self._average.totals[Says.DONE] == self.count and self._saved_in != self._part.round:
                # Whoever saves may be lost meanwhile: another one does then, in another round.
                if self._checkpoints is not None:
                    self._run.phase(Phase.CHECKPOINT)
                    self._checkpoints.finish()
                self._saved_in = self._part.round

    def _wait_at_the_door(self) -> None:
        """This group is ready. It trains from the round on that says so; nobody waits for it until then."""
        group = self._part.group
        assert group is not None
        self._run.say(AtTheDoor(group.epoch))
        self._stay.await_newest(lambda part: part.group is not None and part.group.index is not None)
        self._is_late = False

    # One attempt: all ranks of the group make it in the same round, and agree afterwards on what it came to.

    def _attempt(self, act: Callable[[Across], None]) -> bool:
        """Whether `act`, in the round that the group's ranks agree on, was done on all of them."""
        if self._moves:
            self._move()
        failed: Exception | None = None
        heard = False
        try:
            across = self._across or self._meet()
            act(across)
            heard = self._average.totals[Says.HEARD] == across.size
        except Exception as error:
            if not is_collective_failure(error):
                raise
            failed = error
        later = self._stay.later
        broke = later is not None and later.group is not None and later.group.broke_in > self._part.round
        is_done, all_heard, nobody_broke = self._vote(failed is None, heard, not broke)
        self._moves = not is_done or bool(all_heard) or not nobody_broke
        if is_done:
            self._holds = Holds.ALL
            if self._came_to is not None:
                self.step, self._came_to = self._came_to, None
        else:
            self._await_another(failed)
        return bool(is_done)

    def _move(self) -> None:
        """Into the newest round that a rank of this group knows of."""
        while True:
            part = self._stay.newest
            least, most = self._vote(part.round, -part.round)
            if least == -most:
                break
            self._stay.await_newest(lambda newest, most=-most: newest.round >= most)  # type: ignore[misc]
        if part is not self._part:
            self._run.take_up(part)
        if self._across is not None and self._across.round != part.round:
            self._leave()

    def _keep_up(self) -> None:
        """Between outer steps: into a newer round as soon as a rank of this group knows of it."""
        (most,) = self._vote(-self._stay.newest.round)
        if -most > self._part.round:
            self._move()

    def _leave(self) -> None:
        assert self._across is not None
        self._across.close()
        self._left.append(self._across)
        self._across = None

    def _meet(self) -> Across:
        """Talk to the other groups, and copy the state where this one does not have the newest."""
        across = self._across = self._stay.across = Across(self._part, timeout_s=self._run.timeout_s)
        across.form(self._check)
        for left in self._left:
            left.release()  # everybody is here, and nobody waits there any more
        self._left.clear()
        self._equalize(across)
        return across

    def _check(self) -> None:
        self._stay.check()
        if self._stay.later is not None:
            raise NotFormed("a newer round is known")

    def _equalize(self, across: Across) -> None:
        """Every group gets the state of the one that is furthest."""
        # What scripts build themselves may differ, by their seeds; what was restored is alike.
        digest = self._state.digest() if self._holds is Holds.START and across.size > 1 else 0
        word = torch.tensor([int(self._holds), self.step, digest])
        told = [tuple(map(int, each.tolist())) for each in across.gather(word)]
        holds, step, _ = best = max(told, key=lambda each: each[:2])
        if holds == Holds.NOTHING:
            raise NobodyHasIt(NOBODY_HAS_IT)
        source = told.index(best)
        line = [source, *(at for at, each in enumerate(told) if each != best)]
        if across.index in line[1:]:
            logger.info("copying the state round=%d step=%d group=%d", across.round, step, source)
            self._holds, self._came_to = Holds.NOTHING, step
        if across.index in line:
            self._pass_on(across, line)

    def _pass_on(self, across: Across, line: list[int]) -> None:
        """The state of the first group of the line comes to all of it: who has it gives it to one further group at
        a time, so that it takes as many copies one after the other as the line has binary digits.
        """
        mine = line.index(across.index)
        reach = 1 << mine.bit_length() >> 1
        if mine:
            self._state.receive(across, line[mine - reach])
        step = 1 << mine.bit_length()
        while mine + step < len(line):
            self._state.send(across, line[mine + step])
            step <<= 1

    def _reduce(self, across: Across) -> None:
        """Sum the gradients over the groups; one that has just copied, or has finished, gives none."""
        step = self.step if self._came_to is None else self._came_to
        gives = self._came_to is None and not self._is_done
        says = {
            Says.GIVES: int(gives),
            Says.DONE: int(self._is_done),
            Says.SAVED: int(self._saved_in == across.round),
            Says.HEARD: int(self._stay.later is not None),
            Says.STEP: step,
        }
        if across.size == 1 and self._outer is None:
            self._average.alone(says)
            return
        self._average.sum(across, self._given if gives else lambda place: None, says)
        if self._average.totals[Says.STEP] != step * across.size:
            raise AtDifferentSteps(f"replica groups are at different steps, this one after step {step}")

    def _given(self, place: int) -> Tensor | None:
        """What this rank has to give of a parameter."""
        if self._outer is not None:
            return self._outer.change(place)
        return gradient_of(self._parameters[place])

    def _take_average(self) -> bool:
        """Put the mean in place of the gradients; False when no group gave any.

        A gradient that is here and that nobody gave is of a step that did not count, before this group copied the
        state: an optimizer would step with it here alone.
        """
        if not self._average.totals[Says.GIVES]:
            return False
        is_alone = self._across is None or self._across.size == 1
        means = {} if is_alone else dict(self._average.means())
        for place, each in enumerate(self._parameters):
            if (mean := means.get(place)) is not None:
                if each.grad is None:
                    each.grad = torch.zeros_like(each)
                mine = local_of(each.grad)
                mine.copy_(mean.reshape(mine.shape))
            elif not (is_alone and each.requires_grad):
                each.grad = None
        self.step += 1
        return True

    def _vote(self, *values: int) -> list[int]:
        """The least of each of the values over the ranks of this group."""
        inside = self._part.inside()
        if inside.world_size == 1:
            return [int(each) for each in values]
        on_device = "nccl" in dist.get_backend()
        ballot = torch.tensor(values, dtype=torch.int64, device="cuda" if on_device else "cpu")
        dist.all_reduce(ballot, dist.ReduceOp.MIN)
        return [int(each) for each in ballot.tolist()]

    def _await_another(self, failed: Exception | None) -> None:
        """The next attempt needs another round: the watchdog is told, and shows one."""
        number = self._part.round
        if failed is not None and self._stay.newest.round == number:
            self._run.say(host.failure_of(self._part, failed, across=True))
        if not self._stay.await_newest(lambda part: part.round > number, host.PATIENCE_S):
            raise failed or RuntimeError("no other round came, and another rank of this group could not go on")


def _require_equal_when_compared(every: int, outer: OuterStep) -> None:
    if every % outer.every:
        fix = f"write a multiple of {outer.every}, the steps after which groups are equal, or 0"
        raise InvalidInput(Problem("faultPolicy.corruption.fingerprintEverySteps", every, fix))
