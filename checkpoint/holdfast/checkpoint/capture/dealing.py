"""Which ranks take different batches. A place in the data counts batches over all of those, so that it is the same
in a world of any size: ranks of one tensor-parallel group take the same batch, and that is one batch.
"""

from dataclasses import dataclass
from typing import Final

from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn import Module

from holdfast.checkpoint.capture import dataparts

_COUNTS: Final = ("num_replicas", "num_processes")  # of torch's samplers; of Accelerate's
_SHARE_A_BATCH: Final = frozenset({"tp", "cp", "pp", "sp"})
"""Names of dimensions of a mesh whose ranks work on one batch together.
Source: https://github.com/pytorch/torchtitan, torchtitan/distributed/parallel_dims.py
"""


@dataclass(frozen=True, slots=True)
class Dealing:
    """That of a world in which so many ranks work on one batch. `said`: what the script says; None: nothing."""

    world_size: int
    sharing: int = 1
    said: int | None = None

    def takers(self, data: object = None) -> int:
        """How many ranks take different batches of `data` (None: of any): what the script says, else how many
        shares a sampler deals out, else what is left of the world by how many work on one batch.
        """
        if self.said is not None:
            return self.said
        return self._dealt_out(data) or max(1, self.world_size // self.sharing)

    def _dealt_out(self, data: object) -> int | None:
        for part in dataparts.all_of(data):
            for name in _COUNTS:
                count = getattr(part, name, None)
                if type(count) is int and 1 <= count <= self.world_size:
                    return count
        return None


def sharing_of(model: Module) -> int:
    """How many ranks work on one batch of `model`: those that a tensor is sharded over by hand. What FSDP
    shards is on ranks with batches of their own, and only names tell others from those.
    """
    by_hand = not any(isinstance(each, FSDPModule) for each in model.modules())
    most = 1
    for each in model.parameters():
        if not isinstance(each, DTensor):
            continue
        mesh = each.device_mesh
        names = mesh.mesh_dim_names or (None,) * mesh.ndim
        sharing = 1
        for size, name, placement in zip(mesh.shape, names, each.placements, strict=True):
            if name in _SHARE_A_BATCH or (name is None and by_hand and not placement.is_replicate()):
                sharing *= size
        most = max(most, sharing)
    return most
