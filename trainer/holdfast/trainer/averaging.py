"""What is summed over replica groups at the end of a step: gradients in buckets, and what groups say beside them.

A bucket holds the gradients of some parameters, those first that a backward pass is done with first. It is sent
as soon as they are all there, where the script says that a pass is the step's last one; the rest follows. Groups
send the same buckets in the same order, whatever they have to give.

A gradient goes in single precision, or in its own where that is finer. Of a device it goes through host memory.

Source: gradients averaged in buckets while the backward pass goes on: https://arxiv.org/abs/2006.15704
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from holdfast.api.errors import InvalidInput, Problem, Unavailable
from holdfast.trainer.across import Across
from holdfast.trainer.torchtensors import local_of

BUCKET_BYTES: Final = 25 << 20  # As torch's DDP has it.

Given = Callable[[int], Tensor | None]
"""What this rank has to give of the parameter at a place; None: nothing."""


class Says(IntEnum):
    """What every group says beside its gradients, as a number that is summed; behind how many give a gradient of
    each parameter.
    """

    GIVES = 0  # 1: it has gradients to give, at least of some parameters
    DONE = 1  # 1: it has completed the last step
    SAVED = 2  # 1: what is saved of the last step is saved
    HEARD = 3  # 1: it knows of a newer round
    AGAIN = 4  # 1: a gradient has changed since it was sent
    STEP = 5  # the last step that it has completed


@dataclass(slots=True)
class Bucket:
    """`values` are in host memory; of the parameters at `places`, one behind the other."""

    places: list[int]
    values: Tensor
    waits_for: int = 0
    is_filled: bool = False
    arrived: Any = None  # an event of the device, until what was copied from it is here
    work: dist.Work | None = None


@dataclass(slots=True)
class Totals:
    """Over all groups: how many say each of `Says`, and how many give a gradient of each parameter."""

    counts: Tensor
    parameters: int = field(default=0)

    def __getitem__(self, what: Says) -> int:
        return int(self.counts[self.parameters + what])

    def given(self, place: int) -> int:
        return int(self.counts[place])


class Average:
    """One rank's. It belongs to the training thread, also while a backward pass runs its hooks in another one."""

    def __init__(self, parameters: Sequence[Tensor], *, bucket_bytes: int = BUCKET_BYTES) -> None:
        """Of those `parameters` that train. Raises InvalidInput for one of complex numbers."""
        for each in parameters:
            if each.is_complex():
                fix = "train real numbers: torch.view_as_real gives them"
                raise InvalidInput(Problem("model", f"a parameter of {each.dtype}", fix))
        self._parameters = parameters
        self._bucket_bytes = bucket_bytes
        self._trains: list[bool] = []
        self._buckets: list[Bucket] = []
        self._bucket_of: dict[int, Bucket] = {}
        self._hooks: list[RemovableHandle] = []
        self._sending: Across | None = None  # of the buckets that were sent early
        self._sent, self._is_late = 0, False
        self._is_stale = False  # something has changed since it was sent
        self._failed: Exception | None = None
        self._seen: set[int] = set()  # places
        self.totals = Totals(torch.zeros(0, dtype=torch.int64))
        self._adapt()

    def _adapt(self) -> None:
        """Which parameters train may change between steps."""
        trains = [each.requires_grad for each in self._parameters]
        if trains == self._trains:
            return
        self._trains = trains
        self._forget()
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._buckets, self._bucket_of = [], {}
        for places, dtype in self._shared_out():
            size = sum(local_of(self._parameters[place]).numel() for place in places)
            on_device = any(local_of(self._parameters[place]).is_cuda for place in places)
            bucket = Bucket(places, torch.zeros(size, dtype=dtype, pin_memory=on_device))
            self._buckets.append(bucket)
            self._bucket_of |= dict.fromkeys(places, bucket)
        count = len(self._parameters)
        self.totals = Totals(torch.zeros(count + len(Says), dtype=torch.int64), count)

    def _shared_out(self) -> Iterator[tuple[list[int], torch.dtype]]:
        """Places by bucket, the last parameters first."""
        for dtype in (torch.float32, torch.float64):
            places: list[int] = []
            size_bytes = 0
            for place in reversed(range(len(self._parameters))):
                each = self._parameters[place]
                if not self._trains[place] or (each.dtype == torch.float64) != (dtype == torch.float64):
                    continue
                places.append(place)
                size_bytes += local_of(each).numel() * dtype.itemsize
                if size_bytes >= self._bucket_bytes:
                    yield places, dtype
                    places, size_bytes = [], 0
            if places:
                yield places, dtype

    @contextmanager
    def early(self, across: Across) -> Iterator[None]:
        """Within it runs the step's last backward pass: buckets are sent to the other groups as they fill. `sum`
        sends what is left, and has what was sent early averaged anew where it has failed.
        """
        if self._sending is across:  # a further pass of the same step
            self._is_stale = True
            yield
            return
        self._adapt()
        self._forget()
        self._sending = across
        for bucket in self._buckets:
            bucket.waits_for = len(bucket.places)
        if not self._hooks:
            for place in self._bucket_of:
                self._hooks.append(self._hook(place))
        try:
            yield
        finally:
            self._is_late = True

    def _hook(self, place: int) -> RemovableHandle:
        parameter: Any = self._parameters[place]  # torch has no types for it
        hook: RemovableHandle = parameter.register_post_accumulate_grad_hook(lambda _: self._is_there(place))
        return hook

    def _is_there(self, place: int) -> None:
        """The backward pass has come to the gradient of the parameter at `place`."""
        if self._sending is None:
            return
        if self._is_late or place in self._seen:
            self._is_stale = True  # what was sent is not all of it
            return
        self._seen.add(place)
        self._bucket_of[place].waits_for -= 1
        self._send(self._sending)

    def _send(self, across: Across) -> None:
        """Those buckets that are whole and next in order."""
        for bucket in self._buckets[self._sent :]:
            if bucket.waits_for or self._failed is not None:
                return
            if not bucket.is_filled:
                self._fill(bucket, self._gradient)
            if bucket.arrived is not None and not bucket.arrived.query():
                return
            try:
                bucket.work = across.begin_sum(bucket.values)
            except (RuntimeError, Unavailable) as error:
                self._failed = error
                return
            self._sent += 1

    def _gradient(self, place: int) -> Tensor | None:
        return gradient_of(self._parameters[place])

    def _fill(self, bucket: Bucket, given: Given) -> None:
        at = 0
        for place in bucket.places:
            size = local_of(self._parameters[place]).numel()
            one, part = given(place), bucket.values[at : at + size]
            self.totals.counts[place] = one is not None
            if one is None:
                part.zero_()
            else:
                part.copy_(one.reshape(-1), non_blocking=True)
            at += size
        bucket.is_filled = True
        if bucket.values.is_pinned():
            bucket.arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            bucket.arrived.record()

    def _forget(self) -> None:
        """Nothing is sent. What is still under way may go on to write to its bucket: that is left to it."""
        for bucket in self._buckets:
            if bucket.work is not None:
                bucket.values = torch.zeros_like(bucket.values, pin_memory=bucket.values.is_pinned())
            bucket.work, bucket.is_filled, bucket.arrived = None, False, None
        self._sending, self._sent, self._is_late, self._failed = None, 0, False, None
        self._is_stale = False
        self._seen.clear()

    def sum(self, across: Across, given: Given, says: dict[Says, int]) -> None:
        """Sum over all groups what they give and say: `totals` and `means` tell what came of it.

        Raises what `Across` raises, and `given`; nothing is known then of what arrived.
        """
        if self._sending is not across:
            self._forget()
        elif self._sent and not says[Says.GIVES]:
            raise RuntimeError("a step was left between its backward pass and Replicas.average")
        self._adapt()
        try:
            if self._failed is not None:
                raise self._failed
            says = {**says, Says.AGAIN: self._is_stale}
            self._sum(across, given, says)
            if again := self.totals[Says.AGAIN]:
                self._forget()
                self._sum(across, given, says)
                assert self.totals[Says.AGAIN] == again
        finally:
            self._forget()

    def alone(self, says: dict[Says, int]) -> None:
        """There is no other group: `totals` are what this one says."""
        self._forget()
        self._say(says)

    def _say(self, says: dict[Says, int]) -> None:
        for what in Says:
            self.totals.counts[self.totals.parameters + what] = says.get(what, 0)

    def _sum(self, across: Across, given: Given, says: dict[Says, int]) -> None:
        for bucket in self._buckets[self._sent :]:
            if not bucket.is_filled:
                self._fill(bucket, given)
            if bucket.arrived is not None:
                bucket.arrived.synchronize()
            bucket.work = across.begin_sum(bucket.values)
        self._sent = len(self._buckets)
        for bucket in self._buckets:
            across.end_sum(bucket.work)
            bucket.work = None
        self._say(says)
        across.sum(self.totals.counts)

    def means(self) -> Iterator[tuple[int, Tensor]]:
        """By place, the mean over those that gave anything; of a parameter that nobody gave there is none."""
        gave = self.totals[Says.GIVES]
        for bucket in self._buckets:
            bucket.values.div_(gave)
            at = 0
            for place in bucket.places:
                size = local_of(self._parameters[place]).numel()
                if self.totals.given(place):
                    yield place, bucket.values[at : at + size]
                at += size

    def close(self) -> None:
        """No more is averaged."""
        self._forget()
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()


def gradient_of(parameter: Tensor) -> Tensor | None:
    """What is in this process's memory of its gradient. Raises InvalidInput for a sparse one."""
    if parameter.grad is None:
        return None
    found = local_of(parameter.grad)
    if found.layout is not torch.strided:
        fix = "make it dense, as torch.nn.Embedding(sparse=False) does"
        raise InvalidInput(Problem("model", f"a gradient of layout {found.layout}", fix))
    return found
