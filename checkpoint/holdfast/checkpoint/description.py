"""The files that say what a checkpoint holds: the index, and stock torch's `.metadata`."""

from collections.abc import Mapping, Sequence

from holdfast.checkpoint import index, metadata
from holdfast.checkpoint.part import Part, merge, unpack


class Description:
    """Made anew only where it would differ from that of the save before: of many tensors it is a million small
    objects, and Python looks through all that a process holds while they are made.
    """

    def __init__(self) -> None:
        self._listings: tuple[bytes, ...] = ()
        self._files: Mapping[str, bytes] = {}

    def files(self, parts: Sequence[Part]) -> Mapping[str, bytes]:
        """Their content by name. Raises SaveFailed as `merge` does."""
        listings = tuple(part.listing for part in parts)
        if listings != self._listings:
            whole = merge(map(unpack, listings))
            self._files = {metadata.FILE_NAME: metadata.encode(whole), index.FILE_NAME: index.encode(whole)}
            self._listings = listings
        return self._files
