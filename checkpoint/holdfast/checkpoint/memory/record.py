"""What a snapshot in memory says of itself."""

import msgspec

from holdfast.api.decoding import decode as read
from holdfast.checkpoint.format.index import Path, Stored
from holdfast.checkpoint.format.manifest import Count, FileName, World


class SnapshotRecord(msgspec.Struct, frozen=True):
    """One rank's share of the state after `step` completed steps, as `round` of the job's life `owner` left it.

    The image is the exact content of the rank's file of a checkpoint, called `file`; `entries` and `paths` say
    what lies where in it, as a `Listing` does. `parent` is the step that the round had restored, None when it
    started afresh. `keepers` are the transfer servers ("host:port") that are to hold a copy. `healthy` is whether
    the rank's last loss and gradient norm were finite, None when it could not tell. `alike` are digests of what it
    was to hold like other ranks, by a name for those: where two ranks have another one, the step is not whole.
    """

    owner: str
    round: Count
    rank: Count
    world_size: World
    step: Count
    batches: Count
    file: FileName
    image_bytes: Count
    entries: dict[str, Stored]
    paths: dict[str, Path]
    parent: Count | None = None
    keepers: tuple[str, ...] = ()
    healthy: bool | None = None
    alike: dict[str, str] = {}

    @property
    def age(self) -> tuple[int, int]:
        """Grows from older to newer: a newer round comes after every step of an older one."""
        return self.round, self.step


_DECODER = msgspec.msgpack.Decoder(SnapshotRecord)


def encode(record: SnapshotRecord) -> bytes:
    return msgspec.msgpack.encode(record)


def decode(words: bytes | memoryview) -> SnapshotRecord:
    """Raises Malformed when the bytes are no record."""
    return read(_DECODER, words)
