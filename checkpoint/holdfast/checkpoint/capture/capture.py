"""Taking the snapshots of one round, into the node's memory and for the storage."""

import ctypes
import mmap
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod

import torch
from torch.distributed.tensor import DTensor
from torch.nn import Module
from torch.optim import Optimizer

from holdfast.api.checkpoint import all_finite
from holdfast.checkpoint.capture.image import ImageWriter, Room, Snapshot
from holdfast.checkpoint.capture.live import LiveState, Look
from holdfast.checkpoint.capture.savegroup import SaveGroup
from holdfast.checkpoint.capture.shares import Share, Shares
from holdfast.checkpoint.capture.state import TrainingState
from holdfast.checkpoint.capture.tier import MemoryTier
from holdfast.checkpoint.capture.torchstate import local_of
from holdfast.checkpoint.memory.sharedbuffer import SharedBuffer, capacity_for

_TENSORS_PER_PARAMETER = 4  # Itself, two states as large as it is, and a count of steps.


class PrivateMemory:
    """Memory of this process for a snapshot that has no shared buffer: page-aligned, and touched once when it is
    made, so that no copy into it waits for a page.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.image = memoryview(mmap.mmap(-1, max(capacity_bytes, 1)))
        # ctypes gives the interpreter's lock back meanwhile: another thread may do this.
        ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(self.image)), 0, capacity_bytes)


class Capture:
    """Belongs to the training thread, all but `release`. `memory` None: no snapshots in the node's memory.

    `remembered` is called with the step of each snapshot that is whole there; `is_finite` is asked, once the state
    is copied, whether the last loss and gradient norm of this rank were finite, and `parameters_finite`, of a
    snapshot to be stored, whether the parameters are.
    """

    def __init__(
        self,
        state: TrainingState,
        group: SaveGroup,
        memory: MemoryTier | None,
        *,
        remembered: Callable[[int], object] = lambda step: None,
        is_finite: Callable[[], bool | None] = lambda: None,
        parameters_finite: Callable[[], bool | None] = lambda: None,
    ) -> None:
        self._live = LiveState(state, rank=group.rank)
        self._equivalence = state.equivalence
        self._shares = Shares(group)
        self._writer = ImageWriter(group.rank)
        self._memory = memory
        self._remembered = remembered
        self._is_finite, self._parameters_finite = is_finite, parameters_finite
        self._private: PrivateMemory | None = None
        self._pinned: SharedBuffer | None = None
        estimate = estimated_bytes(state.model, state.optimizer, world_size=group.world_size)
        tensors = sum(1 for _ in state.model.parameters()) * _TENSORS_PER_PARAMETER
        self._preparation = threading.Thread(
            target=self._prepare, args=(estimate, tensors), name="holdfast-prefault", daemon=True
        )
        self._preparation.start()

    def _prepare(self, estimate_bytes: int, tensors: int) -> None:
        if self._memory is not None:
            self._memory.prepare(estimate_bytes, tensors)
        else:
            self._private = PrivateMemory(capacity_for(estimate_bytes))

    def require_storable(self) -> None:
        """Find what cannot be stored before the first step, and not at the first save. Collective; raises as
        `Shares.agree` does.
        """
        self._shares.settle(self._live.look(with_data=False))

    def agree(self, *, step: int) -> None:
        """Share out who stores what, and which snapshots are copied. Collective: after `step`, on all ranks alike.
        Whoever takes one to be stored has agreed as well. Raises as `Shares.agree` does.
        """
        self._agree(self._live.look(), step)

    def remember(self, *, step: int, batches: int) -> bool:
        """Take a snapshot into the node's memory. Not collective; False when this one is left out, because there
        is no room or the state is not what was shared out. Whether ranks still hold alike what they did then is
        for whoever restores it to see.
        """
        if self._memory is None:
            return False
        look = self._live.look()
        share = self._shares.agreed(look)
        if share is None:
            return False
        taken = self._copy(look, share, self._memory.room, step=step, batches=batches, proof=self._shares.proof)
        return taken is not None

    def take(self, *, step: int, batches: int) -> Snapshot:
        """A snapshot to be stored, valid until `release`; there is one at a time. Collective.

        It is one in the node's memory as well, where there is room for it. Raises as `Shares.agree` does.
        """
        if self._equivalence is not None:  # With a loss to compare a restored model by.
            self._equivalence.record(step)
        try:
            look = self._live.look()
        finally:
            if self._equivalence is not None:
                self._equivalence.forget()

        def room(image_bytes: int, entries: int) -> Room:
            if self._memory is not None and (buffer := self._memory.room(image_bytes, entries)) is not None:
                return buffer
            self._preparation.join()
            if self._private is None or self._private.capacity_bytes < image_bytes:
                self._private = None  # Gone before its successor is made.
                self._private = PrivateMemory(capacity_for(image_bytes))
            return self._private

        snapshot = self._copy(look, self._agree(look, step), room, step=step, batches=batches)
        assert snapshot is not None  # There is private memory at the least.
        if self._memory is not None and isinstance(snapshot.room, SharedBuffer):
            self._memory.store.pin(snapshot.room)
            self._pinned = snapshot.room
        # A gradient that was not finite is in the parameters before any loss tells of it, or where none does.
        return replace(snapshot, healthy=all_finite((snapshot.healthy, self._parameters_finite())))

    def release(self) -> None:
        """What `take` gave last is stored, or given up. Any thread."""
        if self._memory is not None and self._pinned is not None:
            self._memory.store.unpin(self._pinned)
            self._pinned = None

    def _agree(self, look: Look, step: int) -> Share:
        if self._memory is not None:
            self._memory.agree(step=step)
        return self._shares.agree(look)

    def _copy(
        self,
        look: Look,
        share: Share,
        room_for: Callable[[int, int], Room | None],
        *,
        step: int,
        batches: int,
        proof: Callable[[Look], Mapping[str, str]] = lambda look: {},
    ) -> Snapshot | None:
        """The snapshot, which counts in the node's memory if it lies there; None without room. It carries its
        `proof`, where the ranks have not just agreed.
        """
        snapshot = self._writer.write(share.whole(look), share.names, room_for, step=step, batches=batches)
        if snapshot is None:
            return None
        # Only now has an accelerator told what it computed last: the copy has waited for it.
        snapshot = replace(snapshot, healthy=self._is_finite(), alike=proof(look))
        room = snapshot.room
        if self._memory is not None and isinstance(room, SharedBuffer) and self._memory.keep(room, snapshot):
            self._remembered(step)
        return snapshot


def estimated_bytes(model: Module, optimizer: Optimizer, *, world_size: int) -> int:
    """How large a rank's share of the state will be, before the optimizer has made its own.

    Parameters that several ranks hold alike are shared out among them. The optimizer keeps as many tensors like
    a parameter as it has betas, or one where it has momentum.
    """
    states: dict[torch.Tensor, int] = {}
    for group in optimizer.param_groups:
        count = len(group.get("betas", ())) or int(bool(group.get("momentum")))
        states |= dict.fromkeys(group["params"], count)
    total = 0.0
    for parameter in model.parameters():
        local: torch.Tensor = parameter
        holders = world_size  # How many ranks hold the same of it.
        if isinstance(parameter, DTensor):
            local = local_of(parameter)
            placed = zip(parameter.device_mesh.shape, parameter.placements, strict=True)
            replicas = prod(size for size, placement in placed if placement.is_replicate())
            holders = replicas * max(1, world_size // parameter.device_mesh.size())
        total += local.nbytes / holders * (1 + states.get(parameter, 0) * parameter.requires_grad)
    return int(total)
