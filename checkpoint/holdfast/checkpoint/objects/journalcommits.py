"""The `Commits` of an object store."""

import logging
from collections.abc import Callable, Collection

from msgspec.structs import replace

from holdfast.api.errors import Fenced
from holdfast.checkpoint import fence
from holdfast.checkpoint.discovery import Found
from holdfast.checkpoint.files import Files
from holdfast.checkpoint.naming import committed_step
from holdfast.checkpoint.need import Need
from holdfast.checkpoint.objects.bucket import Bucket
from holdfast.checkpoint.objects.journal import Head, Journal
from holdfast.checkpoint.objects.naming import save_name, saved_by
from holdfast.checkpoint.retention import Retention, judged
from holdfast.checkpoint.storage import Entered

_LOG = logging.getLogger(__name__)

_TRIES_MAX = 50  # Each one lost is one that somebody else has won.


class JournalCommits:
    """`files` shows what is committed in `bucket`."""

    def __init__(self, bucket: Bucket, files: Files) -> None:
        self._bucket = bucket
        self._files = files
        self._journal = Journal(bucket)
        self._uncertain: set[str] = set()

    def names(self) -> list[str]:
        """What is committed."""
        return sorted(self._journal.read()[1].committed)

    def enter(self, *, owner: str, round: int) -> int:
        """Always writes, also where the round has entered before: what an earlier process of it still wants to
        write after the newest entry is refused from now on.
        """
        head = self._change(
            lambda head: replace(
                head, mark=fence.raised(head.mark, owner=owner, round=round, uri=self._bucket.uri)
            )
        )
        self._journal.require_order()
        number = head.mark.number if head.mark else 0
        self._sweep(head, round=number)
        self._journal.trim()
        return number

    def entered(self) -> Entered:
        head = self._journal.read()[1]
        return Entered(head.mark.number if head.mark else 0, head.need)

    def folder(self, step: int, *, round: int, token: str, attempt: int) -> str:
        return save_name(step, round=round, token=token, attempt=attempt)

    def publish(self, folder: str, *, step: int, round: int) -> str:
        def put_in(head: Head) -> Head:
            fence.check(head.mark, round, uri=self._bucket.uri)
            replaced = tuple(name for name in head.committed if committed_step(name) == step and name != folder)
            others = tuple(name for name in head.committed if committed_step(name) != step)
            return replace(head, committed=(*others, folder), leaving=(*head.leaving, *replaced))

        self._uncertain.add(folder)
        try:
            self._change(put_in)
        except Fenced:
            self._uncertain.discard(folder)  # It was read before anything was written.
            raise
        return folder

    def retire(
        self, retention: Retention, *, round: int, token: str, need: Need | None = None
    ) -> tuple[Found, ...]:
        head = self._journal.read()[1]
        fence.check(head.mark, round, uri=self._bucket.uri)
        verdict = judged(self._files, retention)
        doomed = verdict.doomed

        def take_out(head: Head) -> Head:
            fence.check(head.mark, round, uri=self._bucket.uri)
            there = set(self._bucket.names("")) if head.leaving else set()
            leaving = (*(name for name in head.leaving if name in there), *doomed)
            committed = tuple(name for name in head.committed if name not in doomed)
            left = head.need if need is None else need
            return replace(head, committed=committed, leaving=tuple(dict.fromkeys(leaving)), need=left)

        if doomed or head.leaving or self._uncertain or need not in (None, head.need):
            head = self._change(take_out)
        self._sweep(head, round=round, token=token)
        self._journal.trim()
        return verdict.line

    def discard(self, folder: str) -> None:
        """Delete what was not committed. What may have been, since the store did not say, is left to `retire`."""
        if folder not in self._uncertain:
            self._bucket.delete(folder)

    def _change(self, change: Callable[[Head], Head]) -> Head:
        """Write down what `change` makes of the newest entry. Returns what counts now.

        What this process has tried to write before without an answer is in the journal then, or never will be.
        """
        for _ in range(_TRIES_MAX):
            number, head = self._journal.read()
            changed = change(head)
            if self._journal.append(number + 1, changed):
                self._uncertain.clear()
                return changed
        raise OSError(f"the journal of {self._bucket.uri} is written to by others all the time")

    def _sweep(self, head: Head, *, round: int, token: str = "") -> None:
        """Delete what is no checkpoint, is nobody's save in flight, and is surely not to become one."""
        for name in self._bucket.names(""):
            if name not in head.committed and _is_left(name, head.leaving, round, token):
                try:
                    self._bucket.delete(name)
                except OSError as error:
                    _LOG.warning("old checkpoint not deleted uri=%s/%s reason=%s", self._bucket.uri, name, error)


def _is_left(name: str, leaving: Collection[str], round: int, token: str) -> bool:
    by = saved_by(name)
    return by is not None and (name in leaving or by[0] < round or by == (round, token))
