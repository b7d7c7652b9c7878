"""Which snapshots are taken into memory, and which of them are copied: the same on all ranks.

A lost node's part is restored from its copy, the others' from their own memory. So the copies must be of a step
that everybody still holds. Where a copy takes longer than the steps between two snapshots, each rank's copies
would be of steps of its own; the ranks then agree on which steps are copied, each before the next of them comes.
"""

from math import ceil

from holdfast.checkpoint.council import Council

SETTLED_AFTER = 8
"""After so many steps of a round their time is known, and how long copies take."""

_STRIDE_MAX = 1000
_SLACK = 1.25  # Copies do not all take alike long.


class Rhythm:
    """A snapshot after every `every_steps` steps; copies of each of them, or of some."""

    def __init__(self, council: Council, every_steps: int) -> None:
        self._council = council
        self._every_steps = every_steps
        self._stride = 1
        self._since: tuple[int, float] | None = None

    @property
    def copies_apart_steps(self) -> int:
        """How many steps lie between two snapshots that are copied."""
        return self._every_steps * self._stride

    def is_due(self, step: int) -> bool:
        """Whether a snapshot is to be taken after `step`."""
        return step % self._every_steps == 0

    def is_copied(self, step: int) -> bool:
        """Whether the snapshot after `step` is to be copied."""
        return step % self.copies_apart_steps == 0

    def agree(self, *, copy_s: float, step: int, now_s: float) -> None:
        """Collective, after `step` at `now_s`; the step time is that since the last time. `copy_s` is how long
        this rank's last copy took, 0 when none was made: a keeper that is dead slows nobody down.
        """
        stride = self._stride  # Until there is something new to go by, as when one step is saved twice.
        if self._since is not None and step > self._since[0]:
            apart_s = self._every_steps * (now_s - self._since[1]) / (step - self._since[0])
            stride = max(1, ceil(min(_SLACK * copy_s / max(apart_s, 1e-6), _STRIDE_MAX)))
        self._since = (step, now_s)
        self._stride = max(int(said) for said in self._council.exchange(str(stride).encode()))
