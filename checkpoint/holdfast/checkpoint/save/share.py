"""What one rank has seen of the files that a framework wrote in a save."""

import msgspec

from holdfast.checkpoint.capture.savegroup import SaveGroup
from holdfast.checkpoint.format.manifest import FileRecord


class Share(msgspec.Struct, frozen=True):
    """`files` are those that this rank looked at, `healthy` is whether its last values were finite (None: nobody
    can tell), `failed` is why it could not look.
    """

    files: dict[str, FileRecord]
    healthy: bool | None = None
    failed: str = ""


def gathered(group: SaveGroup, share: Share) -> list[Share]:
    """On rank 0 those of all ranks, in rank order; elsewhere none. Collective."""
    return [msgspec.msgpack.decode(said, type=Share) for said in group.gather(msgspec.msgpack.encode(share))]
