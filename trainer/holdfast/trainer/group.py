"""The default process group of one round: formed, aborted from another thread, and left without a trace."""

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from enum import Enum

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, Store
from torch.distributed import device_mesh, distributed_c10d

from holdfast.api.control import Assignment
from holdfast.api.errors import Unavailable
from holdfast.api.rankrecord import UNKNOWN_INT
from holdfast.trainer.sockets import HeldConnections
from holdfast.trainer.store import RoundStore, meet


def default_backend() -> str:
    return "nccl" if torch.cuda.is_available() else "gloo"


class NotFormed(Unavailable):
    """The ranks of a round could not meet: a matter of the round, not of this process."""


class Meeting(Enum):
    """Where the ranks of a round meet."""

    ENDPOINT = "endpoint"  # at the round's endpoint, where rank 0 hosts a store
    ENVIRONMENT = "environment"  # as the variables of stock torchrun say


class RoundGroup:
    """The process group of one round.

    `form`, `barrier` and `close` belong to the training thread; `abort` and `collective_sequence` may be called
    from any other. The TCP connections this process makes while the group lives are taken for the group's: an
    abort ends them all, and they stay open, held but of no use, until `release`.
    """

    def __init__(
        self, assignment: Assignment, *, backend: str, timeout_s: float, meeting: Meeting = Meeting.ENDPOINT
    ) -> None:
        self._assignment = assignment
        self._backend = backend
        self._timeout_s = timeout_s
        self._meeting = meeting
        self._connections = HeldConnections()
        self._hook_before = sys.excepthook
        self._store: RoundStore | None = None
        self._default: dist.ProcessGroup | None = None
        self._is_closed = False
        self._guard = threading.Lock()

    @property
    def store(self) -> RoundStore | None:
        """Where the ranks met; None before `form`, for a single rank, and under another launcher."""
        return self._store

    def form(self, check: Callable[[], None]) -> None:
        """Meet the other ranks and create the default group.

        `check` is called while waiting and raises when the round is over. Raises NotFormed, DistError or
        RuntimeError when the others cannot be met.
        """
        if "nccl" in self._backend:
            # Otherwise NCCL's watchdog thread ends the process when a peer is lost.
            # Source: https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html
            os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
        try:
            self._initialize(check)
        except Unavailable as error:
            raise NotFormed(str(error)) from error
        with self._guard:
            self._default = dist.group.WORLD

    def barrier(self) -> None:
        """Wait for every rank, unless the script has already destroyed the group."""
        if self._assignment.world_size > 1 and dist.is_initialized():
            dist.barrier()

    def abort(self) -> None:
        """Make every wait of this process in the group raise. Peers notice nothing: each ends its own. Repeatable.

        What is being formed meanwhile may escape one call: call again until the training thread has left.
        """
        # Under the guard, so that a late abort can never meet the connections of the round after.
        with self._guard:
            if self._is_closed:
                return
            self._connections.end()
            _abort_backends()

    def drop(self) -> None:
        """End what is under way on the device, so that `close` does not wait for it; connections stay."""
        with self._guard:
            _abort_backends()

    def hold(self) -> None:
        """Let no peer notice `close`: the connections end with this process.

        For one that is about to end by its script's own fault. Its end says whose fault it was; peers whose
        collectives failed long before it would be heard first.
        """
        with self._guard:
            self._connections.hold()

    def collective_sequence(self) -> int:
        """How many collectives the default group has issued; UNKNOWN_INT when it does not say."""
        with self._guard:
            if self._default is None:
                return UNKNOWN_INT
            try:
                # Private, and missing from torch's type stubs.
                return int(self._default._get_sequence_number_for_group())  # type: ignore[attr-defined]
            except RuntimeError:
                return UNKNOWN_INT

    def close(self) -> None:
        """Destroy every group of the process and what torch remembers of them.

        While peers may still wait in the group, `abort` comes first: it holds the connections.
        """
        with self._guard:
            self._is_closed = True
            self._default = None
        if dist.is_initialized():
            dist.destroy_process_group()
        if self._store is not None:
            self._store.close()
        # Each init_process_group wraps the hook of the one before.
        sys.excepthook = self._hook_before
        forget_groups()

    def release(self) -> None:
        """Let the connections close. To be called once no peer waits in this round any more."""
        self._connections.release()

    def _initialize(self, check: Callable[[], None]) -> None:
        timeout = timedelta(seconds=self._timeout_s)
        if self._meeting is Meeting.ENVIRONMENT:
            dist.init_process_group(self._backend, init_method="env://", timeout=timeout)
            return
        store: Store = HashStore()
        if self._assignment.world_size > 1:
            store = self._store = meet(self._assignment, timeout_s=self._timeout_s, check=check)
        part = self._assignment
        dist.init_process_group(
            self._backend, store=store, rank=part.rank, world_size=part.world_size, timeout=timeout
        )


def _abort_backends() -> None:
    """Does something for NCCL, nothing for gloo."""
    with contextlib.suppress(RuntimeError):  # A group that is being created or destroyed just now.
        for group in tuple(distributed_c10d._world.pg_map):
            group.abort()


# What torch remembers of process groups that are gone, and how to make it forget.
#
# A device mesh equals every mesh of the same ranks, also one of an earlier round in which this process had another
# rank. DTensor keeps, by mesh, what it worked out for an operation, this rank's share included; used again after
# the rank has changed, shards get the wrong size. The caches also keep the old meshes alive, and with them the old
# process groups' connections and threads. The tracker of random numbers is made once, with a broadcast among all
# ranks: a process that still has one would not take part in that of a new process beside it. Groups are named by
# counting, and the count begins anew only when a default group is destroyed: one that could not be formed leaves
# it at one, and ranks that name a group differently wait for each other at different keys.
#
# The caches of other threads than the training thread (autograd's, on CUDA) are out of reach.


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
