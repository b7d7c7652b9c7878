"""Whether a restored model still computes what it did when it was saved.

Hashes say that the bytes are right. They do not say that every byte found its place, that this build of the code
means the same by them, or that these devices still compute. One loss does: with each checkpoint every rank keeps
the batch of its last step and the loss of it under the state that is saved. After a restore it is computed again,
before the first step.

It may differ by what torch itself takes for equal. In another world sums are taken in another order, and even on
the same devices a kernel may be chosen by where a tensor lies in memory: bit for bit would end sound runs.

A difference ends the resume on every rank. Older checkpoints are not tried: these bytes were right, so an older
one would not be more so, and steps would be lost to hide what a human should see.
"""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.nn import Module

from holdfast.api.errors import InvalidInput, Problem
from holdfast.checkpoint.capture import randomness
from holdfast.checkpoint.capture.savegroup import SaveGroup
from holdfast.checkpoint.capture.torchstate import tree_leaves, tree_map
from holdfast.checkpoint.errors import NotEquivalent

_LOG = logging.getLogger(__name__)

LossOf = Callable[[Any], torch.Tensor | float]
"""The loss of a batch under the model as it is. Called on all ranks at once, without gradients."""

BATCH_BYTES_MAX = 64 << 20  # It is stored with every checkpoint, once per rank.

# Relative difference that counts as none. Source: https://docs.pytorch.org/docs/stable/testing.html, assert_close.
_TOLERANCES = {torch.float64: 1e-7, torch.float32: 1.3e-6, torch.float16: 1e-3, torch.bfloat16: 1.6e-2}
_TOLERANCE_MAX = 1.6e-2
_PLAIN = (bool, int, float, str, bytes, type(None))


class Equivalence:
    """Stateful: what it says between `record` and `forget` goes into the checkpoint. `batch` is the newest one."""

    def __init__(self, loss_of: LossOf, model: Module, *, rank: int) -> None:
        self._loss_of = loss_of
        self._model = model
        self._rank = rank
        self._record: dict[str, Any] = {}
        self._found: dict[str, Any] = {}
        self.batch: Any = None

    def record(self, step: int) -> None:
        """Compute the loss of `batch`, for a checkpoint of `step`. Collective. Raises InvalidInput for a batch
        that is not made of tensors and plain values.
        """
        if self.batch is None:
            return
        leaves = tree_leaves(self.batch)
        for leaf in leaves:
            if not isinstance(leaf, (torch.Tensor, *_PLAIN)):
                fix = "give batches made of tensors, numbers and strings, in dicts, lists and tuples"
                raise InvalidInput(Problem(field="equivalence.batch", value=type(leaf).__name__, fix=fix))
        loss = self._loss(self.batch, step)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        size_bytes = sum(tensor.nbytes for tensor in tensors)
        if size_bytes > BATCH_BYTES_MAX:
            _LOG.warning("batch too large to be kept with its loss rank=%d bytes=%d", self._rank, size_bytes)
            return
        self._record = {
            "step": step,
            "loss": loss,
            "device": tensors[0].device.type if tensors else "cpu",
            "batch": tree_map(
                lambda leaf: leaf.detach().cpu().clone() if isinstance(leaf, torch.Tensor) else leaf, self.batch
            ),
        }

    def forget(self) -> None:
        """What is saved from now on carries no loss."""
        self._record = {}

    def state_dict(self) -> dict[str, Any]:
        return self._record

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """To be checked."""
        self._found = state

    def check(self, group: SaveGroup) -> None:
        """Compare with what was restored, if that carries a loss on every rank. Collective. Raises NotEquivalent
        on every rank alike.
        """
        found, self._found = self._found, {}
        if not all(group.exchange(b"can tell" if found else b"")):
            return
        batch = tree_map(
            lambda leaf: leaf.to(found["device"]) if isinstance(leaf, torch.Tensor) else leaf, found["batch"]
        )
        before, now = found["loss"], self._loss(batch, found["step"])
        kinds = {parameter.dtype for parameter in self._model.parameters()}
        tolerance = max((_TOLERANCES.get(kind, _TOLERANCE_MAX) for kind in kinds), default=_TOLERANCE_MAX)
        # Compared as text first: a loss that is no number does not equal itself.
        is_same = before.hex() == now.hex() or abs(before - now) <= tolerance * max(abs(before), abs(now))
        difference = "" if is_same else f"{now!r} instead of {before!r}"
        for rank, said in enumerate(group.exchange(difference.encode())):
            if said:
                raise NotEquivalent(
                    f"rank {rank} computes another loss of the batch of step {found['step']} than when that was "
                    f"saved: {said.decode()}"
                )

    def _loss(self, batch: Any, step: int) -> float:
        """With random numbers as after the seed `step`; afterwards they, the model's buffers and its sharding are
        as they were.
        """
        before = randomness.capture()
        buffers = [(buffer, buffer.detach().clone()) for buffer in self._model.buffers()]
        randomness.reseed(step)
        try:
            with torch.no_grad():
                return float(self._loss_of(batch))
        finally:
            for module in self._model.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()  # Or what is sharded stays whole until the next step.
            with torch.no_grad():
                for buffer, content in buffers:
                    buffer.copy_(content)
            randomness.reinstate(before)
