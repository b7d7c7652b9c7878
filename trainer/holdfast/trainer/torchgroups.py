"""Looking into torch's process groups, beyond what is public of them."""

import contextlib
import logging
import pickle
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import torch.distributed as dist
from torch.distributed import distributed_c10d

from holdfast.api.torchnames import TorchName

if TYPE_CHECKING:  # torch does not say to type checkers that it exports them
    from torch._C._distributed_c10d import HashStore, PrefixStore, Store
else:
    from torch.distributed import HashStore, PrefixStore, Store

__all__ = [
    "NAMES",
    "HashStore",
    "PrefixStore",
    "Store",
    "abort_all",
    "default_store",
    "limit_waits",
    "recorded",
    "sequence_number",
]

logger = logging.getLogger(__name__)

_C10D: Final = "torch.distributed.distributed_c10d"
_BINDINGS: Final = "torch._C._distributed_c10d"
NAMES: Final = (
    TorchName(_C10D, "_world.pg_map", "on NCCL the default group alone is aborted"),
    TorchName(_C10D, "_get_default_store", "in a framework's own loop ranks agree on no extra save"),
    TorchName(_BINDINGS, "ProcessGroup._get_sequence_number_for_group", "nobody tells who is behind"),
    TorchName(
        _BINDINGS,
        "ProcessGroupGloo._set_default_timeout",
        "a wait between groups is shorter",
    ),
    TorchName(_BINDINGS, "_dump_fr_trace", "stacks come without the last collectives"),
)


def abort_all() -> None:
    """End what is under way in every group of this process. Does something for NCCL, nothing for gloo."""
    world = getattr(distributed_c10d, "_world", None)
    groups = getattr(world, "pg_map", None) or filter(None, [dist.group.WORLD])
    with contextlib.suppress(RuntimeError):  # A group that is being created or destroyed just now.
        for group in tuple(groups):
            group.abort()


def default_store() -> "Store | None":
    """Where the ranks of the default group met; None where torch does not tell."""
    told = getattr(distributed_c10d, "_get_default_store", None)
    if told is None:
        logger.warning("this torch does not tell where its ranks met: no save is agreed on name=%s", NAMES[1])
        return None
    store: Store = told()
    return store


def sequence_number(group: dist.ProcessGroup) -> int | None:
    """How many collectives `group` has issued; None where it does not say."""
    try:
        # Missing from torch's type stubs.
        return int(group._get_sequence_number_for_group())  # type: ignore[attr-defined]
    except (AttributeError, RuntimeError):
        return None


def limit_waits(group: "dist.ProcessGroupGloo", timeout: timedelta) -> None:
    """Let a collective of `group` wait no longer, where torch lets us."""
    if (limit := getattr(group, "_set_default_timeout", None)) is not None:
        limit(timeout)


def recorded() -> Sequence[Mapping[str, Any]]:
    """What torch's flight recorder holds, in the order of issue; nothing where there is none. Any thread.

    Raises whatever its private format may lead to.
    """
    bindings: Any = sys.modules.get(_BINDINGS)
    if bindings is None or not hasattr(bindings, "_dump_fr_trace"):
        return ()
    entries: Sequence[Mapping[str, Any]] = pickle.loads(bindings._dump_fr_trace())["entries"]
    return entries
