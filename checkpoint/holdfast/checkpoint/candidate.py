"""What a round may restore: a checkpoint in storage, or the snapshots of one step in the ranks' memory."""

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.api.round import Tier
from holdfast.checkpoint.files import Files
from holdfast.checkpoint.stored import StoredCheckpoint


@dataclass(frozen=True, slots=True)
class Candidate:
    """Opened on every rank, when its turn comes. `open` raises Damaged when what it finds is not what was written,
    and OSError when it cannot tell now.
    """

    name: str
    open: Callable[[], StoredCheckpoint]
    tier: Tier = Tier.CHECKPOINT


def committed(files: Files, name: str) -> Candidate:
    """The checkpoint called `name` in storage."""
    return Candidate(name=name, open=lambda: StoredCheckpoint.open(files, name))
