"""What is asked of an object store."""

from collections.abc import Sequence
from typing import Protocol


class Bucket(Protocol):
    """Objects below one root, by name. Listings and reads show every put that has ended.

    Every method raises OSError when the store fails, FileNotFoundError where an object that is read is none.
    """

    @property
    def uri(self) -> str:
        """How the root is named to people."""

    def put(self, name: str, parts: Sequence[memoryview]) -> None:
        """Store `parts` one after the other, replacing what was there; seen whole or not at all."""

    def create(self, name: str, content: bytes) -> bool:
        """Store `content`, unless there is such an object already: then False. Of several at once one succeeds.

        After an OSError the object may be there, or come to be.
        """

    def part(self, name: str, start: int, end: int) -> bytes:
        """The bytes from `start` up to `end`, of which there is at least one and which the object has."""

    def size_bytes(self, name: str) -> int:
        """The object's size."""

    def modified_at(self, name: str) -> float:
        """When it was stored, by the store's clock: Unix time in seconds."""

    def names(self, folder: str) -> list[str]:
        """What follows `folder/` in the names of objects, up to the next `/`; sorted. "" is the root."""

    def delete(self, folder: str, names: Sequence[str] | None = None) -> None:
        """Delete these objects in `folder`, in this order (None: all of them). What is gone already is fine."""


def read(bucket: Bucket, name: str, offset: int, length_bytes: int) -> bytes:
    """What is stored there; shorter than asked for at the end of the object. Raises as `Bucket` does."""
    end = min(offset + length_bytes, bucket.size_bytes(name))
    return bucket.part(name, offset, end) if offset < end else b""
