"""What a training rank proves of itself between two steps: that its device computes right and its parameters hold.

Three things, each as often as the job wants or as rarely as its share of the step time makes it (`budget`): the
fixed block, the look at a pause, and the norm of the rank's own gradient. None of them waits for the device, and
none of them ever stops training: what fails is given up, says so once, and leaves what it proves Unknown.
"""

import logging
import math
import time
from collections.abc import Callable
from typing import Final

import torch
from torch.nn import Module

from holdfast.api.drill import Spoiler
from holdfast.trainer.block import FixedBlock, dtypes_of
from holdfast.trainer.budget import BLOCK_SHARE, LOOK_SHARE, NORM_SHARE, Budget
from holdfast.trainer.fingerprint import Sketch
from holdfast.trainer.hostcopy import HostCopy, Stopwatch
from holdfast.trainer.localnorm import LocalNorm
from holdfast.trainer.pause import Change, Pauses
from holdfast.trainer.record import RankRecord

logger = logging.getLogger(__name__)

_UNDER_WAY_MAX: Final = 4  # a device so far behind is given no more to do


class Proofs:
    """One model's during one round. `completed` is called after each step, by the training thread."""

    def __init__(
        self,
        model: Module,
        *,
        every: int,
        record: RankRecord,
        is_drill: bool = False,
        spoiler: Spoiler | None = None,
    ) -> None:
        """`every` is in steps, of the block and the norm; pauses are looked at in all steps. `spoiler` as in
        `FixedBlock`. In a drill nothing is made rarer: the steps of a small model are too short to tell what a
        real job would see.
        """
        parameters = list(model.parameters())
        device = parameters[0].device if parameters else torch.device("cpu")
        self._device, self._every, self._record = device, every, record
        self._at: float | None = None  # when the step before was complete
        self._looks = 0
        self._pauses: Pauses | None = Pauses(model, device)
        self._norm: LocalNorm | None = LocalNorm(model, device)
        self._block: FixedBlock | None = FixedBlock(device, dtypes_of(parameters, device), spoiler=spoiler)
        shares = {"look": LOOK_SHARE, "norm": NORM_SHARE, "block": BLOCK_SHARE}
        self.budgets = {name: Budget(math.inf if is_drill else share) for name, share in shares.items()}
        self._answers: list[_Answer] = []
        self._norms: list[tuple[int, HostCopy, Stopwatch]] = []

    def completed(self, step: int) -> None:
        """Step `step` is complete, the optimizer has stepped. Never waits, and never raises."""
        now = time.perf_counter()
        if self._at is not None:
            for budget in self.budgets.values():
                budget.stepped(now - self._at)
        self._at = now
        # A look's result comes before the answers that build on it, a pause begins when the rest is done.
        for name, proof in (("look", self._publish_looks), ("norm", self._measure), ("block", self._answer)):
            self._guarded(name, proof, step)
        self._guarded("look", self._begin_pause, step)

    def close(self) -> None:
        """The round is over: let go of the model."""
        for each in (self._pauses, self._norm):
            if each is not None:
                each.close()
        self._pauses = self._norm = self._block = None

    def _guarded(self, name: str, proof: Callable[[int], None], step: int) -> None:
        try:
            proof(step)
        except Exception:
            logger.exception("a proof is given up proof=%s step=%d", name, step)
            self._give_up(name)

    def _give_up(self, name: str) -> None:
        if name == "look" and self._pauses is not None:
            self._pauses.close()
            self._pauses, self._looks = None, 0
        elif name == "norm" and self._norm is not None:
            self._norm.close()
            self._norm = None
        elif name == "block":
            self._block, self._answers = None, []

    def _publish_looks(self, step: int) -> None:
        for look in () if self._pauses is None else self._pauses.ended():
            self._count("look", look.watch)
            if look.changed.value != Change.NONE:
                self._record.changed(look.step, is_flip=look.changed.value == Change.FLIP)
            else:
                self._looks += 1

    def _begin_pause(self, step: int) -> None:
        if self._pauses is None:
            return
        is_due = step % self.budgets["look"].every(1) == 0
        if is_due and self._pauses.under_way < _UNDER_WAY_MAX:
            self._pauses.begin(step)
        else:
            self._pauses.skip()

    def _measure(self, step: int) -> None:
        while self._norms and self._norms[0][1].is_there():
            at, norm, watch = self._norms.pop(0)
            self._count("norm", watch)
            self._record.local_norm(at, float(norm.value))
        if self._norm is None:
            return
        if self._norm.armed and (taken := self._norm.take()) is not None:
            self._norms.append((step, *taken))
        if (step + 1) % self.budgets["norm"].every(self._every) == 0 and len(self._norms) < _UNDER_WAY_MAX:
            self._norm.arm()

    def _answer(self, step: int) -> None:
        self._publish_answers()
        is_first = self._answers == [] and not self.budgets["block"].is_warm
        is_due = is_first or step % self.budgets["block"].every(self._every) == 0
        if self._block is not None and is_due and len(self._answers) < _UNDER_WAY_MAX:
            self._answers.append(_Answer(step, self._block, self._device, self._looks))
            self._publish_answers()

    def _publish_answers(self) -> None:
        # An answer says that nothing changed up to its step, so every look at an earlier pause is told before.
        first = None if self._pauses is None else self._pauses.oldest_under_way
        while self._answers and self._answers[0].is_there() and (first is None or self._answers[0].step <= first):
            one = self._answers.pop(0)
            self._count("block", one.watch)
            self._record.answered(one.step, one.value(), one.likeness, one.looks)

    def _count(self, name: str, watch: Stopwatch) -> None:
        taken_s = watch.taken_s()
        if taken_s is not None:
            self.budgets[name].spent(taken_s)


class _Answer:
    """One run of the block, between the device and the host."""

    def __init__(self, step: int, block: FixedBlock, device: torch.device, looks: int) -> None:
        self.step, self.looks = step, looks
        self.watch = Stopwatch(device)
        self.watch.start()
        self.likeness = block.likeness()
        self._sketch = Sketch(block.run())
        self._totals = [HostCopy(total) for total in self._sketch.totals]
        self.watch.stop()

    def is_there(self) -> bool:
        return all(total.is_there() for total in self._totals)

    def value(self) -> int:
        return self._sketch.value_of(int(total.value) for total in self._totals)
