"""What is deleted once a save is committed, and who is told what stays."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from holdfast.api.errors import Damaged, Fenced
from holdfast.checkpoint.commit.discovery import Found, discover
from holdfast.checkpoint.commit.retention import Retention, Writer, descent
from holdfast.checkpoint.commit.storage import Storage
from holdfast.checkpoint.runport import RunPort

_LOG = logging.getLogger(__name__)

KEEP = 3  # The newest may be cut short by what ended the round, the one before it may be damaged.


def retention_of(run: RunPort, keep: int | None) -> Retention:
    """What stays of the checkpoints of `run` now; `keep` None: what the job says, else `KEEP`."""
    standing, part = run.standing(), run.assignment
    count = keep or part.keep or KEEP
    return Retention(count, part.fingerprint_every, standing.verified, unhealthy_from=standing.unhealthy_from)


class Tidying:
    """The deletions of one round; for rank 0. `retention` is asked before each, since what is verified changes.
    `stored` is called after each with what stays of the history that goes on, newest first, and with `saved`, the
    newest step saved so far (None: none).
    """

    def __init__(
        self,
        storage: Storage,
        writer: Writer,
        *,
        retention: Callable[[], Retention],
        stored: Callable[[Sequence[Found], int | None], object] = lambda line, saved: None,
    ) -> None:
        self._storage = storage
        self._writer = writer
        self._retention = retention
        self._stored = stored
        self.saved: int | None = None

    def tidy(self) -> None:
        """Delete the checkpoints that need not be kept, and what failed saves have left, after a save. What fails
        is tried again after the next one.
        """
        try:
            self.clear()
        except (Fenced, Damaged) as error:
            _LOG.warning("old checkpoints not deleted uri=%s reason=%s", self._storage.uri, error)

    def clear(self) -> None:
        """The same. Raises Fenced, and Damaged when nobody can tell."""
        writer = self._writer
        retention = replace(self._retention(), writer=writer)
        try:
            line: Sequence[Found] = self._storage.commits.retire(
                retention, round=writer.round, token=writer.token, need=retention.need
            )
        except OSError as error:
            _LOG.warning("old checkpoints not deleted uri=%s reason=%s", self._storage.uri, error)
            try:
                line = descent(discover(self._storage)[0], writer)  # Some may be gone for all that.
            except OSError:
                return
        self._stored(line, self.saved)
