"""What a store has seen, told by a small file beside it: a store that is empty knows nothing of the life it had.

The file holds two numbers that only grow: the last fence, and how often the disk was waited for. It is written
after the store has taken each, and never waited for, so that it is never ahead of a store that nobody touched: a
store that is behind it has lost something. Its log was deleted, its file was cut or replaced.
"""

import os
import re
from pathlib import Path
from typing import Final

import msgspec

from holdfast.api.errors import Unavailable

SUFFIX: Final = ".life"
_LINE = re.compile(rb"([0-9]{20}) ([0-9]{20})\n")


class Seen(msgspec.Struct, frozen=True):
    """How far a store was."""

    fence: int = 0
    hardened: int = 0


class Witness:
    """The file beside the store at `store`."""

    def __init__(self, store: Path) -> None:
        self.path = store.with_name(store.name + SUFFIX)

    def seen(self) -> Seen:
        """How far the store was. Nothing where there is no file, or one that says nothing. Raises Unavailable."""
        try:
            found = _LINE.match(self.path.read_bytes())
        except FileNotFoundError:
            return Seen()
        except OSError as error:
            raise Unavailable(f"{self.path} cannot be read: {error.strerror}") from error
        return Seen(int(found[1]), int(found[2])) if found else Seen()

    def note(self, seen: Seen) -> None:
        """The store is as far as that. Raises Unavailable."""
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.pwrite(descriptor, b"%020d %020d\n" % (seen.fence, seen.hardened), 0)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise Unavailable(f"{self.path} cannot be written: {error.strerror}") from error
