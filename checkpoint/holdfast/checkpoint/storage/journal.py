"""The journal: everything that was ever decided about the checkpoints of one bucket, in one order.

Each entry is an object that is created once and holds all that counts from then on: the fence and the names of
what is committed. Whoever wants to change something writes down the whole anew, as the entry after the one that it
has read. Of several who do, the store lets one succeed; the others read on and decide again. So no commit can come
between a round's entering and what the round then reads, and no lock or clock is needed. The store holds:

step-00000012.7-<token>_<attempt>/...     a save of step 12 by round 7; whether it is a checkpoint says the journal
journal/000000000042.json                 the journal's entry 42
"""

import logging
import re
import secrets
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from holdfast.api.decoding import decode_json
from holdfast.api.errors import Damaged, Fenced, Malformed
from holdfast.checkpoint.commit import fence
from holdfast.checkpoint.commit.discovery import Found, committed_name, committed_step
from holdfast.checkpoint.commit.fence import Mark
from holdfast.checkpoint.commit.retention import Need, Retention, judged
from holdfast.checkpoint.commit.storage import Entered
from holdfast.checkpoint.format.files import Files
from holdfast.checkpoint.storage.bucket import Bucket, read

_LOG = logging.getLogger(__name__)

_KEPT = 100  # How far behind the newest a writer may have stopped and still find out; more only costs listing.
_DELETED_AT_ONCE = 20
_ENTRY_BYTES_MAX = 1 << 20

JOURNAL = "journal"
_SAVE = re.compile(r"step-\d{8,}\.(\d+)-(\w+)_\d+")  # The round and the token of whose it is.
_ENTRY = re.compile(r"(\d{12})\.json")


def entry_name(number: int) -> str:
    return f"{number:012d}.json"


class Head(msgspec.Struct, frozen=True):
    """All that counts. `leaving` were committed once and are to be deleted; `need` is left for whoever deletes by
    hand; `writer` tells equal entries apart.
    """

    mark: Mark | None = None
    committed: tuple[str, ...] = ()
    leaving: tuple[str, ...] = ()
    need: Need = Need()
    writer: str = ""


class Journal:
    """Raises Damaged when an entry cannot be read, OSError when the store fails."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def read(self) -> tuple[int, Head]:
        """The newest entry and its number; 0 where there is none yet."""
        numbers = self._numbers()
        if not numbers:
            return 0, Head()
        name = f"{JOURNAL}/{entry_name(numbers[-1])}"
        found = read(self._bucket, name, 0, _ENTRY_BYTES_MAX)
        try:
            return numbers[-1], decode_json(found, Head)
        except Malformed as error:
            raise Damaged(f"{self._bucket.uri}/{name} cannot be read: {error}") from error

    def append(self, number: int, head: Head) -> bool:
        """Make `head` entry `number`, after the newest that was read. False: somebody else was first.

        After an OSError nobody knows whether it did; the next `append` of that number will tell.
        """
        document = msgspec.json.encode(replace(head, writer=secrets.token_hex(8)))
        name = f"{JOURNAL}/{entry_name(number)}"
        # The store may have heard of it twice, where the first answer was lost.
        if not self._bucket.create(name, document) and read(self._bucket, name, 0, _ENTRY_BYTES_MAX) != document:
            return False
        # Entries are deleted in order. Where the one before is gone, this one was created in the place of one that
        # has been deleted since: it is not the newest, and nobody reads it.
        if number > 1 and number - 1 not in self._numbers():
            self._bucket.delete(JOURNAL, [entry_name(number)])
            return False
        return True

    def trim(self) -> None:
        """Delete what is so old that nobody can still be waiting to write after it. What fails is tried again."""
        try:
            old = [entry_name(number) for number in self._numbers()[:-_KEPT][:_DELETED_AT_ONCE]]
            self._bucket.delete(JOURNAL, old)
        except OSError as error:
            _LOG.warning("journal not shortened uri=%s reason=%s", self._bucket.uri, error)

    def require_order(self) -> None:
        """Raises OSError when the store creates an object that is there already: then there is no order."""
        newest = self._numbers()[-1]
        again = read(self._bucket, f"{JOURNAL}/{entry_name(newest)}", 0, _ENTRY_BYTES_MAX)
        if self._bucket.create(f"{JOURNAL}/{entry_name(newest)}", again):  # The same bytes: it does no harm.
            raise OSError(
                f"{self._bucket.uri} does not honour conditional writes, so rounds could not be told apart there"
            )

    def _numbers(self) -> list[int]:
        found = map(_ENTRY.fullmatch, self._bucket.names(JOURNAL))
        return sorted(int(match[1]) for match in found if match)


_TRIES_MAX = 50  # Each one lost is one that somebody else has won.


class JournalCommits:
    """The `Commits` of an object store. `files` shows what is committed in `bucket`."""

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
        uri = self._bucket.uri
        head = self._change(
            lambda head: replace(head, mark=fence.raised(head.mark, owner=owner, round=round, uri=uri))
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
        return f"{committed_name(step)}.{round}-{token}_{attempt}"

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
            match = _SAVE.fullmatch(name)
            if match is None or name in head.committed:
                continue
            saved_by = int(match[1]), match[2]
            if name in head.leaving or saved_by[0] < round or saved_by == (round, token):
                try:
                    self._bucket.delete(name)
                except OSError as error:
                    _LOG.warning("old checkpoint not deleted uri=%s/%s reason=%s", self._bucket.uri, name, error)
