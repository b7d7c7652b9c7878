"""What torch remembers of process groups that are gone, and how to make it forget.

A device mesh equals every mesh of the same ranks, also one of an earlier round in which this process had another
rank. DTensor keeps, by mesh, what it worked out for an operation, this rank's share included; used again after the
rank has changed, shards get the wrong size. The caches also keep the old meshes alive, and with them the old
process groups' connections and threads. The tracker of random numbers is made once, with a broadcast among all
ranks: a process that still has one would not take part in that of a new process beside it. Groups are named by
counting, and the count begins anew only when a default group is destroyed: one that could not be formed leaves it
at one, and ranks that name a group differently wait for each other at different keys.

The caches of other threads than the training thread (autograd's, on CUDA) are out of reach.
"""

import sys

import torch
from torch.distributed import device_mesh, distributed_c10d


def forget_groups() -> None:
    """To be called by the training thread once a round's groups are destroyed."""
    distributed_c10d._world.group_count = 0
    device_mesh._mesh_resources.mesh_stack.clear()
    if "torch.distributed.tensor" in sys.modules:
        _forget_sharding()


def _forget_sharding() -> None:
    from torch.distributed.tensor import DTensor, _collective_utils, _random, _redistribute
    from torch.distributed.tensor._sharding_prop import LocalLRUCache

    propagator = DTensor._op_dispatcher.sharding_propagator
    # A new object: a cache of each thread's own hides behind the old one.
    propagator.propagate_op_sharding = LocalLRUCache(propagator.propagate_op_sharding_non_cached)
    propagator._propagate_tensor_meta_cached.cache_clear()
    torch._C._clear_DTensor_sharding_propagator_cache()
    _redistribute.clear_redistribute_planner_cache()
    _redistribute._gen_transform_infos.cache_clear()
    _random._rng_tracker = None
    _collective_utils.MeshTopoInfo.build_from_mesh.cache_clear()
