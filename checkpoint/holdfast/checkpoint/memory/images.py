"""The images of one step, read as if they were the files of a checkpoint."""

import errno
from collections.abc import Mapping, Sequence

from holdfast.api.errors import Damaged
from holdfast.checkpoint.manifest import FileRecord
from holdfast.checkpoint.memory.holdings import Holdings
from holdfast.checkpoint.memory.peers import Peers
from holdfast.checkpoint.memory.protocol import Which


class Images:
    """A `Files` that only reads: from the node's own memory, else from the peers that hold the image.

    What no peer gives is lost with the node that held it, not away for a while: it raises Damaged, so that an
    older candidate is tried.
    """

    def __init__(
        self, holdings: Holdings, peers: Peers, whiches: Mapping[str, Which], servers: Mapping[str, Sequence[str]]
    ) -> None:
        """`whiches` and `servers` by file: whose image it is, and which servers hold it, the nearest first."""
        self._holdings = holdings
        self._peers = peers
        self._whiches = whiches
        self._servers = servers

    def read(self, name: str, offset: int, length_bytes: int) -> bytes:
        own = self.view(name, offset, length_bytes)
        if own is not None:
            return bytes(own)
        found = bytearray(length_bytes)
        return bytes(found[: self.read_into(name, offset, memoryview(found))])

    def view(self, name: str, offset: int, length_bytes: int) -> memoryview | None:
        """The bytes where they lie in this node's memory; None when the image is elsewhere."""
        found = self._holdings.find(self._whiches[_file(name)])
        if found is None:
            return None
        holding, held = found
        return holding.arena.image[: held.record.image_bytes][offset : offset + length_bytes]

    def read_into(self, name: str, offset: int, into: memoryview) -> int:
        """Fill `into`; how many bytes there were."""
        own = self.view(name, offset, into.nbytes)
        if own is not None:
            into[: own.nbytes] = own
            return own.nbytes
        which, reasons = self._whiches[_file(name)], []
        for server in self._servers[_file(name)]:
            try:
                return self._peers.ask(server, lambda peer: peer.read(which, offset, into))
            except OSError as error:
                reasons.append(f"{server}: {error or type(error).__name__}")
        raise Damaged(f"{name} is out of reach ({'; '.join(reasons) or 'no server is known'})")

    def open(self, name: str) -> "_Image":
        """For reading into memory that is there already."""
        return _Image(self, name)

    def size_bytes(self, name: str) -> int:
        raise _read_only(name)

    def names(self, folder: str = "") -> list[str]:
        return sorted(self._whiches)

    def write(self, name: str, parts: Sequence[memoryview]) -> FileRecord:
        raise _read_only(name)

    def free_bytes(self) -> int:
        return 0


class _Image:
    """An `OpenFile`."""

    def __init__(self, images: Images, name: str) -> None:
        self._images = images
        self._name = name

    def read_into(self, offset: int, memory: memoryview) -> int:
        return self._images.read_into(self._name, offset, memory)

    def expect(self, offset: int, length_bytes: int) -> None:
        """It is in memory already, here or there."""

    def close(self) -> None:
        """Connections are kept for the next one."""


def _file(name: str) -> str:
    return name.rpartition("/")[2]


def _read_only(name: str) -> OSError:
    return OSError(errno.EROFS, "images in memory are only read", name)
