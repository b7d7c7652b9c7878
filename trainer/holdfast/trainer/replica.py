"""What this rank holds of a model, and its fingerprint every so many steps, without waiting for the device."""

import hashlib
import logging
from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch import Tensor

from holdfast.trainer.fingerprint import Sketch
from holdfast.trainer.hostcopy import HostCopy

logger = logging.getLogger(__name__)

_UNDER_WAY_MAX: Final = 4  # a device so far behind is given no more to do
Publish = Callable[[int, int, int], None]
"""Called with the step, the fingerprint and the group."""


class Replica:
    """One model's fingerprints during one round.

    They are taken on the device, behind the work already queued, and copied to pinned memory. `completed`
    publishes those that have arrived, so on an accelerator a step or more late; on the CPU at once.
    """

    def __init__(self, model: torch.nn.Module, *, every: int, part: str, publish: Publish) -> None:
        """`every` is in steps. `part` tells apart ranks whose tensors do not say what part they hold."""
        self._model = model
        self._every = every
        self._part = part
        self._publish = publish
        self._under_way: list[_UnderWay] = []
        self._is_unfit = False  # it holds a kind of tensor that cannot be read as words

    def completed(self, step: int) -> None:
        """Step `step` is complete, the optimizer has stepped. Never waits, and never raises: training goes on."""
        if self._is_unfit:
            return
        try:
            self._publish_arrived()
            if step % self._every == 0 and len(self._under_way) < _UNDER_WAY_MAX:
                self._under_way.append(self._taken(step))
                self._publish_arrived()
        except Exception:
            logger.exception("parameters are not fingerprinted any more step=%d", step)
            self._is_unfit = True

    def _taken(self, step: int) -> "_UnderWay":
        parameters = dict(self._model.named_parameters())
        return _UnderWay(step, Sketch(parameters), group_of(parameters, self._part))

    def _publish_arrived(self) -> None:
        while self._under_way and self._under_way[0].has_arrived():
            one = self._under_way.pop(0)
            self._publish(one.step, one.value(), one.group)


class _UnderWay:
    """One fingerprint between the device and the host."""

    def __init__(self, step: int, sketch: Sketch, group: int) -> None:
        self.step = step
        self.group = group
        self._sketch = sketch
        self._totals = [HostCopy(total) for total in sketch.totals]

    def has_arrived(self) -> bool:
        return all(total.is_there() for total in self._totals)

    def value(self) -> int:
        return self._sketch.value_of(int(total.value) for total in self._totals)


def group_of(parameters: Mapping[str, Tensor], part: str = "") -> int:
    """The unsigned 64-bit group of ranks that hold the same: the same names, shapes, shards and `part`.

    A DTensor says which shard it is: its place in the mesh on the dimensions over which it is sharded. Along those
    on which it is replicated the places differ and the group is the same.
    """
    said = [part, *(f"{name} {_held(parameter)}" for name, parameter in parameters.items())]
    return int.from_bytes(hashlib.blake2b("\n".join(said).encode(), digest_size=8).digest(), "little")


def _held(parameter: Tensor) -> str:
    whole = f"{parameter.dtype} {tuple(parameter.shape)}"
    mesh = getattr(parameter, "device_mesh", None)
    if mesh is None:
        return whole
    place = mesh.get_coordinate() or ()
    shards = [
        f"{placement} {at} of {mesh.size(dimension)}"
        for dimension, (placement, at) in enumerate(zip(parameter.placements, place, strict=False))  # type: ignore[attr-defined]  # a DTensor
        if not placement.is_replicate()
    ]
    return f"{whole} {shards}"
