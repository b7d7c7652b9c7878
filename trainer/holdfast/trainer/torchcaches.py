"""What torch itself remembers of process groups, and how it is made to forget it: all by private names.

A device mesh equals every mesh of the same ranks, also one of an earlier round in which this process had another
rank. DTensor keeps, by mesh, what it worked out for an operation, this rank's share included; used again after the
rank has changed, shards get the wrong size. The caches also keep the old meshes alive, and with them the old
process groups' connections and threads. The tracker of random numbers is made once, with a broadcast among all
ranks: a process that still has one would not take part in that of a new process beside it. Groups are named by
counting, and the count begins anew only when a default group is destroyed: one that could not be formed leaves it
at one, and ranks that name a group differently wait for each other at different keys.

A torch that lacks one of the names may keep the same under another. Then nothing tells whether the process is as
good as a new one, and new ones take its place in the next round, which takes longer and is always right.

The caches of other threads than the training thread (autograd's, on CUDA) are out of reach.
"""

import importlib
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.api.torchnames import TorchName

logger = logging.getLogger(__name__)

_NEW_PROCESSES: Final = "a line in the log; every round has new processes"
_TENSOR: Final = "torch.distributed.tensor"

Forgets = Callable[[Any, str], object]
"""How what is under a name, given what has it, is forgotten."""


def _to(value: object) -> Forgets:
    return lambda holder, name: setattr(holder, name, value)


def _call(holder: Any, name: str) -> object:
    return getattr(holder, name)()


def _renew(propagator: Any, name: str) -> None:
    # A new object: a cache of each thread's own hides behind the old one.
    setattr(propagator, name, type(getattr(propagator, name))(propagator.propagate_op_sharding_non_cached))


_SHARDING: Final = "DTensor._op_dispatcher.sharding_propagator"

KEPT: Final[tuple[tuple[TorchName, Forgets], ...]] = tuple(
    (TorchName(module, name, _NEW_PROCESSES), forgets)
    for module, name, forgets in (
        ("torch.distributed.distributed_c10d", "_world.group_count", _to(0)),
        ("torch.distributed.device_mesh", "_mesh_resources.mesh_stack.clear", _call),
        (_TENSOR, f"{_SHARDING}.propagate_op_sharding_non_cached", lambda holder, name: None),
        (_TENSOR, f"{_SHARDING}.propagate_op_sharding", _renew),
        (_TENSOR, f"{_SHARDING}._propagate_tensor_meta_cached.cache_clear", _call),
        ("torch._C", "_clear_DTensor_sharding_propagator_cache", _call),
        (f"{_TENSOR}._redistribute", "clear_redistribute_planner_cache", _call),
        (f"{_TENSOR}._redistribute", "_gen_transform_infos.cache_clear", _call),
        (f"{_TENSOR}._random", "_rng_tracker", _to(None)),
        (f"{_TENSOR}._collective_utils", "MeshTopoInfo.build_from_mesh.cache_clear", _call),
    )
)
NAMES: Final = tuple(name for name, _ in KEPT)


@dataclass(slots=True)
class TorchCaches:
    """What this process's torch keeps of process groups; `kept` for what is not there to be tested on."""

    kept: tuple[tuple[TorchName, Forgets], ...] = KEPT
    _lacking: dict[str, None] = field(default_factory=dict)  # names, once they were looked for
    _looked_at: bool | None = None  # whether DTensor was in use when they were

    def forget(self) -> None:
        """Make torch forget groups that are gone. To be called by the training thread once they are destroyed.

        What cannot be forgotten is told in the log, and by `lacking` from then on.
        """
        for name, forgets in self._in_use():
            try:
                forgets(*name.holder())
            except Exception:  # of a torch that nobody has tried: a process that goes on must not end by it
                self._note(name)

    def lacking(self) -> tuple[str, ...]:
        """The names without which this process is not as good as a new one. Any thread, about a microsecond."""
        if self._looked_at is not (_TENSOR in sys.modules):
            self._looked_at = _TENSOR in sys.modules
            if self._looked_at:
                importlib.import_module(_TENSOR)  # waits for the thread that is at it
            for name, _ in self._in_use():
                if not name.is_there:
                    self._note(name)
        return tuple(self._lacking)

    def _in_use(self) -> tuple[tuple[TorchName, Forgets], ...]:
        """Nothing is imported for it: who has not imported DTensor has nothing of its to forget."""
        has_tensors = _TENSOR in sys.modules
        return tuple(each for each in self.kept if has_tensors or each[0].module in sys.modules)

    def _note(self, name: TorchName) -> None:
        if str(name) not in self._lacking:
            self._lacking[str(name)] = None
            logger.warning("this torch cannot be made to forget its groups: %s name=%s", name.without, name)


CACHES: Final = TorchCaches()
"""Those of this process."""
