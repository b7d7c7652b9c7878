"""The journal: everything that was ever decided about the checkpoints of one bucket, in one order.

Each entry is an object that is created once and holds all that counts from then on: the fence and the names of
what is committed. Whoever wants to change something writes down the whole anew, as the entry after the one that it
has read. Of several who do, the store lets one succeed; the others read on and decide again. So no commit can come
between a round's entering and what the round then reads, and no lock or clock is needed.
"""

import logging
import secrets

import msgspec

from holdfast.api.decoding import decode_json
from holdfast.api.errors import Damaged, Malformed
from holdfast.checkpoint.fence import Mark
from holdfast.checkpoint.need import Need
from holdfast.checkpoint.objects.bucket import Bucket, read
from holdfast.checkpoint.objects.naming import JOURNAL, entry_name, entry_number

_LOG = logging.getLogger(__name__)

_KEPT = 100  # How far behind the newest a writer may have stopped and still find out; more only costs listing.
_DELETED_AT_ONCE = 20
_ENTRY_BYTES_MAX = 1 << 20


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
        return numbers[-1], self._entry(numbers[-1])

    def append(self, number: int, head: Head) -> bool:
        """Make `head` entry `number`, after the newest that was read. False: somebody else was first.

        After an OSError nobody knows whether it did; the next `append` of that number will tell.
        """
        document = msgspec.json.encode(msgspec.structs.replace(head, writer=secrets.token_hex(8)))
        if not self._create(number, document):
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

    def _create(self, number: int, document: bytes) -> bool:
        name = f"{JOURNAL}/{entry_name(number)}"
        if self._bucket.create(name, document):
            return True
        # The store may have heard of it twice, where the first answer was lost.
        return read(self._bucket, name, 0, _ENTRY_BYTES_MAX) == document

    def _entry(self, number: int) -> Head:
        found = read(self._bucket, f"{JOURNAL}/{entry_name(number)}", 0, _ENTRY_BYTES_MAX)
        try:
            return decode_json(found, Head)
        except Malformed as error:
            raise Damaged(f"{self._bucket.uri}/{JOURNAL}/{entry_name(number)} cannot be read: {error}") from error

    def _numbers(self) -> list[int]:
        found = (entry_number(name) for name in self._bucket.names(JOURNAL))
        return sorted(number for number in found if number is not None)
