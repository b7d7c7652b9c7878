"""Taking the snapshots of one round: into the node's memory, and for the storage."""

import ctypes
import math
import mmap
import threading
from collections.abc import Callable
from dataclasses import replace
from math import prod

import torch
from torch.distributed.tensor import DTensor
from torch.nn import Module
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from holdfast.checkpoint.council import Council
from holdfast.checkpoint.live import LiveState, Look
from holdfast.checkpoint.memory.arena import Arena, capacity_for
from holdfast.checkpoint.memorytier import MemoryTier
from holdfast.checkpoint.shares import Share, Shares
from holdfast.checkpoint.snapshot import Draft, Room, Snapshot, Stage
from holdfast.checkpoint.state import TrainingState

# Memory of this process for a snapshot that has no arena.


class PrivateMemory:
    """Page-aligned, and touched once when it is made, so that no copy into it waits for a page."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.image = memoryview(mmap.mmap(-1, max(capacity_bytes, 1)))
        # ctypes gives the interpreter's lock back meanwhile: another thread may do this.
        ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(self.image)), 0, capacity_bytes)


_FORMATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_TENSORS_PER_PARAMETER = 4  # Itself, two states as large as it is, and a count of steps.


class Capture:
    """Belongs to the training thread, all but `release`. `memory` None: no snapshots in the node's memory.

    `remembered` is called with the step of each snapshot that is whole there; `is_finite` is asked, once the state
    is copied, whether the last loss and gradient norm of this rank were finite. A snapshot to be stored is healthy
    only when the parameters are finite as well.
    """

    def __init__(
        self,
        state: TrainingState,
        council: Council,
        memory: MemoryTier | None,
        *,
        remembered: Callable[[int], object] = lambda step: None,
        is_finite: Callable[[], bool | None] = lambda: None,
    ) -> None:
        self._model = state.model
        self._live = LiveState(state, rank=council.rank)
        self._equivalence = state.equivalence
        self._shares = Shares(council)
        self._stage = Stage(council.rank)
        self._memory = memory
        self._remembered = remembered
        self._is_finite = is_finite
        self._private: PrivateMemory | None = None
        self._pinned: dict[int, Arena] = {}
        estimate = estimated_bytes(state.model, state.optimizer, world_size=council.world_size)
        tensors = sum(1 for _ in state.model.parameters()) * _TENSORS_PER_PARAMETER
        self._preparation = threading.Thread(
            target=self._prepare, args=(estimate, tensors), name="holdfast-prefault", daemon=True
        )
        self._preparation.start()

    def agree(self, *, step: int) -> None:
        """Share out who stores what, and which snapshots are copied. Collective: after `step`, on all ranks alike.
        Whoever takes one to be stored has agreed as well. Raises as `Shares.agree` does.
        """
        self._agree(self._live.look(), step)

    def remember(self, *, step: int, batches: int) -> bool:
        """Take a snapshot into the node's memory. Not collective; False when this one is left out, because there
        is no room or the state is not what was shared out.
        """
        if self._memory is None:
            return False
        look = self._live.look()
        share = self._shares.agreed(look)
        if share is None:
            return False
        draft = self._stage.draft(share.whole(look), share.keys)
        arena = self._memory.room(draft.image_bytes, len(draft.entries))
        if arena is not None:
            self._keep(arena, self._copied(draft, arena, step, batches))
        return arena is not None

    def take(self, *, step: int, batches: int) -> Snapshot:
        """A snapshot to be stored, valid until it is given to `release`. Collective.

        It is one in the node's memory as well, where there is room for it. Raises as `Shares.agree` does.
        """
        look = self._look_to_store(step)
        share = self._agree(look, step)
        draft = self._stage.draft(share.whole(look), share.keys)
        arena = self._memory.room(draft.image_bytes, len(draft.entries)) if self._memory else None
        if arena is None:
            return self._looked_at(self._copied(draft, self._private_room(draft), step, batches))
        snapshot = self._copied(draft, arena, step, batches)
        self._keep(arena, snapshot)
        self._pin(arena, snapshot)
        return self._looked_at(snapshot)

    def _looked_at(self, snapshot: Snapshot) -> Snapshot:
        """A gradient that was not finite is in the parameters before any loss tells of it."""
        return snapshot if are_finite(self._model) else replace(snapshot, healthy=False)

    def _copied(self, draft: Draft, room: Room, step: int, batches: int) -> Snapshot:
        """Only now has an accelerator told what it computed last: the copy has waited for it."""
        snapshot = self._stage.take(draft, room, step=step, batches=batches)
        return replace(snapshot, healthy=self._is_finite())

    def _agree(self, look: Look, step: int) -> Share:
        if self._memory is not None:
            self._memory.agree(step=step)
        return self._shares.agree(look)

    def _look_to_store(self, step: int) -> Look:
        """With a loss to compare a restored model by, if one is wanted."""
        if self._equivalence is None:
            return self._live.look()
        self._equivalence.record(step)
        try:
            return self._live.look()
        finally:
            self._equivalence.forget()

    def release(self, snapshot: Snapshot) -> None:
        """What `take` gave is stored, or given up. Any thread."""
        arena = self._pinned.pop(id(snapshot), None)
        if arena is not None and self._memory is not None:
            self._memory.unpin(arena)

    def _keep(self, arena: Arena, snapshot: Snapshot) -> None:
        if self._memory is not None and self._memory.keep(arena, snapshot):
            self._remembered(snapshot.step)

    def _pin(self, arena: Arena, snapshot: Snapshot) -> None:
        if self._memory is not None:
            self._memory.pin(arena)
            self._pinned[id(snapshot)] = arena

    def _private_room(self, draft: Draft) -> PrivateMemory:
        self._preparation.join()
        if self._private is None or self._private.capacity_bytes < draft.image_bytes:
            self._private = None  # Gone before its successor is made.
            self._private = PrivateMemory(capacity_for(draft.image_bytes))
        return self._private

    def _prepare(self, estimate_bytes: int, tensors: int) -> None:
        if self._memory is not None:
            self._memory.prepare(estimate_bytes, tensors)
        else:
            self._private = PrivateMemory(capacity_for(estimate_bytes))


@torch.no_grad()
def are_finite(model: Module) -> bool:
    """Whether all parameters in training are finite, as far as this rank holds them. Waits for the device."""
    held = [
        (each._local_tensor if isinstance(each, DTensor) else each).detach()
        for each in model.parameters()
        if each.requires_grad and each.dtype in _FORMATS
    ]
    # The largest of all magnitudes, which is not finite when one of them is not: it cannot overflow by itself.
    largest = get_total_norm([each for each in held if each.numel()], norm_type=math.inf)
    return bool(largest.isfinite())


def estimated_bytes(model: Module, optimizer: Optimizer, *, world_size: int) -> int:
    """How large a rank's share of the state will be, before the optimizer has made its own.

    Parameters that several ranks hold alike are shared out among them. The optimizer keeps as many tensors like
    a parameter as it has betas, or one where it has momentum.
    """
    settings = optimizer.defaults
    states = len(settings.get("betas", ())) or int(bool(settings.get("momentum")))
    total = 0.0
    for parameter in model.parameters():
        local = parameter._local_tensor if isinstance(parameter, DTensor) else parameter
        total += local.nbytes / _holders(parameter, world_size) * (1 + states * parameter.requires_grad)
    return int(total)


def _holders(parameter: object, world_size: int) -> int:
    """How many ranks hold the same of it."""
    if not isinstance(parameter, DTensor):
        return world_size
    sizes = parameter.device_mesh.shape
    placed = zip(sizes, parameter.placements, strict=True)
    replicas = prod(size for size, placement in placed if placement.is_replicate())
    return replicas * max(1, world_size // parameter.device_mesh.size())
