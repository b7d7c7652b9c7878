"""Where checkpoints live: files, how a folder of them becomes a checkpoint, and who may make it one."""

from dataclasses import dataclass
from typing import Protocol

from holdfast.checkpoint.commit.discovery import Found
from holdfast.checkpoint.commit.retention import Need, Retention
from holdfast.checkpoint.format.files import Files, Folders


@dataclass(frozen=True, slots=True)
class Entered:
    """The number of the round that entered last, 0 when none has, and what was left as needed for a rewind."""

    number: int
    need: Need


class Commits(Protocol):
    """Rounds and commits of one storage, one strictly after the other. All of it is for rank 0, but `folder`.

    Every method but `folder` raises Fenced when a newer round has entered, Damaged when nobody can tell, and
    OSError when the storage fails.
    """

    def enter(self, *, owner: str, round: int) -> int:
        """Enter as `owner`'s `round` and clear away what rounds that died have left.

        Returns the number that the round has in this storage, for everything it does there.
        """

    def entered(self) -> Entered:
        """For whoever deletes by hand: who entered last, and what that job needs."""

    def folder(self, step: int, *, round: int, token: str, attempt: int) -> str:
        """Where the files of that `attempt` of the round to save `step` are written."""

    def publish(self, folder: str, *, step: int, round: int) -> str:
        """Make the complete, durable `folder` the checkpoint of `step`, in the place of one that may be there.

        Returns the name it has from now on.
        """

    def retire(
        self, retention: Retention, *, round: int, token: str, need: Need | None = None
    ) -> tuple[Found, ...]:
        """Delete what `retention` does not keep, and what failed saves of `token` have left. Readers see each
        checkpoint whole or not at all. `need` is left for whoever deletes by hand; None: what was left stays.

        Returns what stays of the history that goes on, newest first.
        """


class Storage(Files, Folders, Protocol):
    """What a save needs. `uri` is how the root is named to people."""

    @property
    def uri(self) -> str: ...

    @property
    def commits(self) -> Commits:
        """How what was written becomes a checkpoint."""
