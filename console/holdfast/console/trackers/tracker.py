"""What publishes a job: the port that W&B, MLflow, TensorBoard and the webhook fill.

Calls come from one thread of its own, one after the other, and may take long: nothing else waits for them. Each
may raise Unavailable (it is tried again until it succeeds) or InvalidInput (it never will: this tracker is given
up). What returned is out: it is not said again, unless the process died in that moment.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from holdfast.console.trackers.records import Ended, Note
from holdfast.console.trackers.settling import Retold, Shown


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """The one run of a job. `key` names it for ever, `name` is what people read, `job` is namespace/name."""

    key: str
    name: str
    job: str


class Tracker(Protocol):
    """Where a job is published. `forgets`: `back` is possible. `shows`: rows are wanted, not only notes."""

    forgets: bool
    shows: bool

    def open(self, series: str, published: int) -> int:
        """Begin the job's run, or go on in it; returns the newest step that is out of `series` (-1: none).

        `published` is what this process believes to be out: less, after it died. A tracker that can forget
        forgets what is newer and returns it.
        """

    def show(self, rows: Sequence[Shown]) -> None:
        """Publish rows; of each series their steps only grow."""

    def back(self, step: int) -> None:
        """Forget every step after `step`. Only of one that `forgets`."""

    def note(self, note: Note | Retold) -> None:
        """Note an incident, or what was given up. The same again changes nothing."""

    def close(self, ended: Ended | None) -> None:
        """Everything is out. None: the job goes on without this process. May be opened again."""
