"""What a training rank proves of itself between two steps: that its device computes right and its parameters hold.

Three things, each as often as the job wants or as rarely as its share of the step time makes it (`Budget`): the
fixed block, the look at a pause, and the norm of the rank's own gradient. None of them waits for the device, and
none of them ever stops training: what fails is given up, says so once, and leaves what it proves Unknown.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.utils import get_total_norm
from torch.utils.hooks import RemovableHandle

from holdfast.api.control import Assignment
from holdfast.api.drill import Spoiler
from holdfast.api.runhistory import RunHistory
from holdfast.trainer.block import FixedBlock, dtypes_of
from holdfast.trainer.drill import Corruption, NanOutputs, device_spoiler
from holdfast.trainer.fingerprint import Replica, Sketch
from holdfast.trainer.groupprints import GroupPrints
from holdfast.trainer.hostcopy import HostCopy, Stopwatch
from holdfast.trainer.pause import Change, Pauses
from holdfast.trainer.record import RankRecord
from holdfast.trainer.torchtensors import is_shared_out, local_of

logger = logging.getLogger(__name__)

_UNDER_WAY_MAX: Final = 4  # a device so far behind is given no more to do
# What all proofs together may take of the step time is half a percent; they share it like this.
BLOCK_SHARE: Final = 0.0015
LOOK_SHARE: Final = 0.003
NORM_SHARE: Final = 0.0005
_REMEMBERED: Final = 9  # measures, so that one that was held up by something else does not count
_PARAMETERS_MAX: Final = 1 << 16  # whose gradients are measured


def steps_between(cost_s: float, step_s: float, share: float) -> int:
    """At least how many steps lie between two of what takes `cost_s`, so that it is at most `share` of them."""
    if cost_s <= 0.0:
        return 1
    if step_s <= 0.0:
        raise ValueError(f"step_s is {step_s}, a step takes more than no time")
    return max(1, math.ceil(cost_s / (share * step_s)))


class Budget:
    """What one kind of proof took so far, and how rare it has to be.

    The first one finds its memory and loads its kernels: it does not count.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._costs_s: deque[float] = deque(maxlen=_REMEMBERED)
        self._steps_s: deque[float] = deque(maxlen=_REMEMBERED)
        self.is_warm = False  # one was done

    def spent(self, cost_s: float) -> None:
        """One was done."""
        if self.is_warm:
            self._costs_s.append(cost_s)
        self.is_warm = True

    def stepped(self, step_s: float) -> None:
        """A step took so long, with what was done after it."""
        if step_s > 0.0:
            self._steps_s.append(step_s)

    @property
    def share(self) -> float | None:
        """What one takes of one step; None while nothing is measured."""
        if not (self._costs_s and self._steps_s):
            return None
        return median(self._costs_s) / median(self._steps_s)

    def every(self, wanted: int) -> int:
        """Every how many steps: `wanted`, or as many times two as are needed.

        All that this ever says divide each other, so ranks that measure differently still do it at common steps.
        """
        share = self.share
        needed = 1 if share is None else steps_between(share, 1.0, self._share)
        return wanted << max(0, math.ceil(math.log2(needed / wanted)))


class LocalNorm:
    """The norm of a rank's own gradient, before it is reduced over the ranks: of one model on one device, until it
    is closed. It is measured in the steps for which it is `armed`.

    A gradient that is reduced is the same on all ranks, whoever computed it wrong. The rank's own is there for a
    moment: autograd has added it up and the framework has not yet sent it. DDP shows it in the parameter itself,
    FSDP2 in the gathered parameter, which a module holds while it computes. Where neither is so (a pass that is
    compiled as a whole, parameters without a gradient of their own) nothing is told.
    """

    def __init__(self, model: Module, device: torch.device) -> None:
        self._device = device
        self._watch = Stopwatch(device)
        self.armed = False
        self._hooked: dict[int, RemovableHandle] = {}  # by the id of a parameter, which the hook keeps alive
        self._norms: dict[int, Tensor] = {}
        self._error: Exception | None = None
        self._handles = [each.register_forward_pre_hook(self._before_forward) for each in model.modules()]

    def arm(self) -> None:
        """Measure in the step that begins now: of several backward passes in it, the last."""
        self.armed = True
        self._watch = Stopwatch(self._device)

    def take(self) -> tuple[HostCopy, Stopwatch] | None:
        """The step is complete: its norm, and what that took; None where nothing was seen. Never waits.

        Raises what went wrong in the step.
        """
        self.armed = False
        if self._error is not None:
            raise self._error
        norms, self._norms = self._norms, {}
        if not norms:
            return None
        with self._watch:
            total = HostCopy(torch.linalg.vector_norm(torch.stack(list(norms.values()))))
        return total, self._watch

    def close(self) -> None:
        """Look no more, and let go of the model."""
        for handle in (*self._handles, *self._hooked.values()):
            handle.remove()
        self._handles, self._hooked, self._norms = [], {}, {}

    def _before_forward(self, module: Module, args: tuple[Any, ...]) -> None:
        """Now the module holds what it computes with: under FSDP2 that comes and goes."""
        if torch.compiler.is_compiling() or not self.armed or len(self._hooked) >= _PARAMETERS_MAX:
            return
        try:
            for parameter in module.parameters(recurse=False):
                if parameter.requires_grad and parameter.is_leaf and id(parameter) not in self._hooked:
                    hook = parameter.register_post_accumulate_grad_hook(self._accumulated)  # type: ignore[no-untyped-call]
                    self._hooked[id(parameter)] = hook
        except Exception as error:  # the step goes on
            self._error = error

    @torch.no_grad()
    def _accumulated(self, parameter: Tensor) -> None:
        try:
            gradient = parameter.grad
            if not self.armed or gradient is None or is_shared_out(gradient) or gradient.is_sparse:
                return
            if gradient.device == self._device:
                with self._watch:
                    self._norms[id(parameter)] = torch.linalg.vector_norm(gradient, dtype=torch.float32)
        except Exception as error:  # the pass goes on
            self._error = error


@dataclass(frozen=True, slots=True)
class _Answer:
    """One run of the block, between the device and the host."""

    step: int
    looks: int
    likeness: int
    sketch: Sketch
    watch: Stopwatch


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
            with (watch := Stopwatch(self._device)):
                likeness, sketch = self._block.likeness(), Sketch(self._block.run())
            self._answers.append(_Answer(step, self._looks, likeness, sketch, watch))
            self._publish_answers()

    def _publish_answers(self) -> None:
        # An answer says that nothing changed up to its step, so every look at an earlier pause is told before.
        first = None if self._pauses is None else self._pauses.oldest_under_way
        while (
            self._answers
            and self._answers[0].sketch.is_there()
            and (first is None or self._answers[0].step <= first)
        ):
            one = self._answers.pop(0)
            self._count("block", one.watch)
            self._record.answered(one.step, one.sketch.value(), one.likeness, one.looks)

    def _count(self, name: str, watch: Stopwatch) -> None:
        taken_s = watch.taken_s()
        if taken_s is not None:
            self.budgets[name].spent(taken_s)


class Watched:
    """The model of one round: nothing is done with it, as a rule, but what the assignment asks for."""

    def __init__(
        self,
        model: Module,
        assignment: Assignment,
        *,
        part: str,
        record: RankRecord,
        corruptible: Path | None,
        history: RunHistory | None = None,
    ) -> None:
        """`corruptible` is the directory in which a drill leaves its requests; `history` is rank 0's.

        What a drill corrupts is fingerprinted after, but in a pause that has begun: so does memory.
        """
        todo: list[Callable[[int], None]] = []
        self._model: Module | None = model
        self._proofs: Proofs | None = None
        every = assignment.fingerprint_every
        if every > 0:
            spoiler = None if corruptible is None else device_spoiler(corruptible, assignment.local_rank)
            self._proofs = Proofs(
                model, every=every, record=record, is_drill=corruptible is not None, spoiler=spoiler
            )
            todo.append(self._proofs.completed)
        if corruptible is not None:
            todo.append(Corruption(corruptible, assignment.rank, model).completed)
            todo.append(NanOutputs(corruptible, assignment.rank, model).completed)
        if every > 0:
            todo.append(Replica(model, every=every, part=part, publish=record.fingerprint).completed)
        if every > 0 and history is not None:
            todo.append(GroupPrints(model, every=every, publish=history.fingerprint).completed)
        self._todo = tuple(todo)

    def completed(self, step: int) -> None:
        """Step `step` is complete."""
        for each in self._todo:
            each(step)

    def close(self) -> None:
        """The round is over: let go of the model."""
        if self._proofs is not None:
            self._proofs.close()
        self._todo, self._model = (), None

    @torch.no_grad()
    def is_finite(self) -> bool:
        """Whether all parameters in training are, as far as this rank can tell. Waits for the device.

        A gradient that was not finite in the last step is in them, and no loss will tell of it.
        """
        # A model may have no truth value, as one that is compiled, or that of its length.
        parameters = () if self._model is None else self._model.parameters()
        trained = [each for each in parameters if each.requires_grad]
        held = [local_of(each) for each in trained if each.dtype.itemsize > 1]
        try:
            # The largest of all magnitudes, which is not finite when one of them is not: it cannot overflow.
            largest = get_total_norm([each for each in held if each.numel()], norm_type=math.inf)
            return bool(largest.isfinite())
        except Exception as error:  # a script may do with its model what it wants once it has trained it
            logger.warning("whether parameters are finite is not known error=%s", error)
            return True
