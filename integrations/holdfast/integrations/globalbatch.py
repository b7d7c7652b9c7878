"""The global batch of a step, kept constant in worlds of any size: each rank takes more micro batches, or fewer.

A world that has shrunk with its script's batch for each rank unchanged trains on smaller batches, at a learning
rate that was chosen for larger ones. A step therefore takes as many samples in every world: as many micro batches
on each rank as that needs, of the size that the script says, or the next smaller one that comes out even.
Source: https://arxiv.org/abs/1706.02677 (why a learning rate belongs to a global batch).
"""

from dataclasses import dataclass

from holdfast.api.errors import InvalidInput, Problem

_WORLDS_NAMED = 6


@dataclass(frozen=True, slots=True)
class BatchShare:
    """What each rank does of a step: `accumulation` micro batches of `micro_batch` samples, one by one."""

    micro_batch: int
    accumulation: int

    def global_batch(self, world_size: int) -> int:
        """The samples of a step, over all ranks of a world of this size."""
        return self.micro_batch * self.accumulation * world_size


def share_of(global_batch: int, *, world_size: int, micro_batch: int) -> BatchShare:
    """Each rank's share of `global_batch` samples a step in a world of `world_size` ranks.

    `micro_batch` is how many samples a rank takes at once as the script says it: it stays where that comes out
    even, else it is the largest one below that does. So no rank needs more memory than the script asked for.

    Raises InvalidInput when one of them is below 1, and when `global_batch` cannot be split evenly over the world;
    the latter names world sizes and global batches that fit.
    """
    for name, value in (("global_batch", global_batch), ("world_size", world_size), ("micro_batch", micro_batch)):
        if value < 1:
            raise InvalidInput(Problem(field=name, value=value, fix="write at least 1"))
    if global_batch % world_size:
        raise InvalidInput(Problem("global_batch", global_batch, _what_fits(global_batch, world_size)))
    each = global_batch // world_size
    micro = next(size for size in range(min(micro_batch, each), 0, -1) if each % size == 0)
    return BatchShare(micro, each // micro)


def fitting_worlds(global_batch: int, *, up_to: int) -> list[int]:
    """The world sizes of at most `up_to` ranks over which `global_batch` samples split evenly, largest first."""
    return [size for size in range(min(up_to, global_batch), 0, -1) if global_batch % size == 0]


def _what_fits(global_batch: int, world_size: int) -> str:
    below = global_batch - global_batch % world_size
    sizes = fitting_worlds(global_batch, up_to=2 * world_size)[:_WORLDS_NAMED]
    near = [size for size in (below, below + world_size) if size > 0]
    return (
        f"it does not split evenly over {world_size} ranks; let the world have {_either(sizes)} ranks "
        f"(spec.nodes.min and max, processesPerNode), or choose a global batch of {_either(near)}"
    )


def _either(numbers: list[int]) -> str:
    return " or ".join(map(str, numbers))
