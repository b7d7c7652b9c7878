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
from enum import IntEnum
from types import TracebackType
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from holdfast.api.control import Assignment, AtTheDoor
from holdfast.api.errors import HoldfastError, InvalidInput, Problem
from holdfast.trainer import host
from holdfast.trainer.across import Across
from holdfast.trainer.group import NotFormed
from holdfast.trainer.outerstep import OuterState, OuterStep
from holdfast.trainer.peercopy import Stateful, TrainingState
from holdfast.trainer.run import Run

logger = logging.getLogger(__name__)

# What is summed over the groups beside gradients: how many give any, have finished, and know of a newer round; and
# the steps they have completed.
_GAVE, _DONE, _HEARD, _STEP = -4, -3, -2, -1
_TALLY: Final = 4
NOBODY_HAS_IT: Final = "no replica group is left that has the training state"


class Holds(IntEnum):
    """What a group has of the training state."""

    NOTHING = 0  # it is being formed, or was just copying
    START = 1  # what the script built or restored: as good as that of every other group of its round
    ALL = 2  # it has trained, or copied


class NobodyHasIt(RuntimeError):
    """Every group that had the state is gone; the round fails, and the next one restores."""


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

    Args:
        model: with its gradients; what is trained, and copied.
        optimizer: as above. Its parameters are those of `model`.
        also: what else belongs to the state, by name: a schedule, a loader.
        step: the last step that is complete in what the script restored, the same in all groups.
        outer: groups train by themselves, and average after so many steps how far they came: call `stepped` after
            `optimizer.step()`. None: they average the gradients of every step.

    Raises InvalidInput for a model that trains nothing or a negative step.
    """

    def __init__(
        self,
        run: Run,
        *,
        model: Module,
        optimizer: Optimizer,
        also: Mapping[str, Stateful] | None = None,
        step: int = 0,
        outer: OuterStep | None = None,
    ) -> None:
        if step < 0:
            raise InvalidInput(Problem("step", step, "give the last step that is complete, 0 for none"))
        self._trained = [each for each in model.parameters() if each.requires_grad]
        if not self._trained:
            raise InvalidInput(Problem("model", type(model).__name__, "give a model with parameters that train"))
        self._run, self._stay = run, run.stay
        every = run.assignment.fingerprint_every
        if outer is not None and every % outer.every:
            fix = f"write a multiple of {outer.every}, the steps after which groups are equal, or 0"
            raise InvalidInput(Problem("faultPolicy.corruption.fingerprintEverySteps", every, fix))
        self._outer = OuterState(outer, [_held(each) for each in self._trained]) if outer is not None else None
        more = self._outer.tensors() if self._outer is not None else ()
        self._state = TrainingState(model, optimizer, also or {}, more)
        self._across: Across | None = None
        self._left: list[Across] = []
        self._sums = torch.zeros(sum(_held(each).numel() for each in self._trained))
        # How many groups have a gradient of each parameter, and what `_TALLY` says.
        self._counts = torch.zeros(len(self._trained) + _TALLY, dtype=torch.int64)
        self._holds, self._moves, self._is_done = Holds.START, True, False
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

        Raises RoundEnded when the round is over, and what the group's own collectives raise.
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
        elif self.step % self._outer.wanted.every:
            return
        while not self._attempt(self._reduce):
            pass
        for place, mean in self._means():
            self._outer.step(place, mean)

    def __enter__(self) -> "Replicas":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The last step is complete: wait until it is so in all groups. One may have to copy it from this one."""
        if kind is None and self._part.group is not None and not self._is_late:
            self._is_done = True
            while not (self._attempt(self._reduce) and int(self._counts[_DONE]) == self.count):
                pass
        if self._across is not None:
            self._across.close()
            self._across.release()

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
            heard = int(self._counts[_HEARD]) == across.size
        except (RuntimeError, HoldfastError) as error:
            if isinstance(error, NobodyHasIt):
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
        told = [tuple(each.tolist()) for each in across.gather(torch.tensor([int(self._holds), self.step]))]
        best = max(told)
        if best[0] == Holds.NOTHING:
            raise NobodyHasIt(NOBODY_HAS_IT)
        source = told.index(best)
        # What scripts build themselves may differ, by their seeds.
        behind = [at for at, each in enumerate(told) if at != source and (each != best or best[0] == Holds.START)]
        if across.index in behind:
            logger.info("copying the state round=%d step=%d group=%d", across.round, best[1], source)
            self._holds, self._came_to = Holds.NOTHING, best[1]
            self._state.receive(across, source)
        elif across.index == source:
            for each in behind:
                self._state.send(across, each)

    def _reduce(self, across: Across) -> None:
        """Sum the gradients over the groups; one that has just copied, or has finished, gives none."""
        step, at = self.step if self._came_to is None else self._came_to, 0
        gives = self._came_to is None and not self._is_done
        for place, each in enumerate(self._trained):
            size = _held(each).numel()
            grad = self._given(place) if gives else None
            part = self._sums[at : at + size]
            part.zero_() if grad is None else part.copy_(grad.reshape(-1))
            self._counts[place] = grad is not None
            at += size
        self._counts[_GAVE], self._counts[_DONE] = gives, self._is_done
        self._counts[_HEARD], self._counts[_STEP] = self._stay.later is not None, step
        across.sum(self._counts)
        if int(self._counts[_STEP]) != step * across.size:
            raise RuntimeError(f"replica groups are at different steps, this one after step {step}")
        across.sum(self._sums)

    def _given(self, place: int) -> Tensor | None:
        """What this rank has to give of a parameter."""
        if self._outer is not None:
            return self._outer.change(place)
        grad = self._trained[place].grad
        return None if grad is None else _held(grad)

    def _means(self) -> Iterator[tuple[int, Tensor]]:
        """By place, the mean of what was given of each parameter; of one that nobody gave there is none."""
        gave, at = int(self._counts[_GAVE]), 0
        for place, each in enumerate(self._trained):
            size = _held(each).numel()
            if int(self._counts[place]):
                yield place, self._sums[at : at + size] / gave
            at += size

    def _take_average(self) -> bool:
        """Put the mean in place of the gradients; False when no group gave any."""
        if not int(self._counts[_GAVE]):
            return False
        for place, mean in self._means():
            each = self._trained[place]
            if each.grad is None:
                each.grad = torch.zeros_like(each)
            held = _held(each.grad)
            held.copy_(mean.reshape(held.shape))
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


def _held(values: Tensor) -> Tensor:
    """What is in this process's memory of a tensor, sharing it, without a gradient."""
    held: Tensor = getattr(values, "_local_tensor", values)
    return held.detach()
