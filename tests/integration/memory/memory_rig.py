"""Real transfer servers, each the node of one folder, and workers that take snapshots into it."""

import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from patience import patient

from holdfast.api.control import Assignment
from holdfast.api.memory import MemoryOrder, NodeMemory
from holdfast.api.round import Endpoint, Restore, Tier
from holdfast.checkpoint.capture.savegroup import SaveGroup
from holdfast.checkpoint.capture.tier import MemoryStore
from holdfast.checkpoint.format.index import StoredObject
from holdfast.checkpoint.memory.peers import Peer
from holdfast.checkpoint.memory.protocol import Which
from holdfast.checkpoint.memory.record import SnapshotRecord
from holdfast.checkpoint.memory.sharedbuffer import HeldSnapshot, SharedBuffer, capacity_for
from holdfast.checkpoint.restore.recollect import Recollection, recollect

KEY = "a-life-of-the-job"
PATIENCE_S = patient(30.0)
MIB = 1 << 20


class Node:
    """A memory folder and the server that serves it."""

    def __init__(self, home: Path, *options: str) -> None:
        self.home = home
        self.folder = home / "memory"
        self.folder.mkdir(parents=True)
        self.options = options
        (home / "key").write_text(KEY)
        self.reserved = reserved_port()
        self.port: int = self.reserved.getsockname()[1]
        self.process = self._launch()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> "subprocess.Popen[bytes]":
        """Returns once it listens."""
        self.process = self._launch()
        self.wait()
        return self.process

    def wait(self) -> None:
        wait_until((self.home / "port").exists)

    def _launch(self) -> "subprocess.Popen[bytes]":
        told = self.home / "port"
        told.unlink(missing_ok=True)
        with (self.home / "log").open("ab") as log:
            return subprocess.Popen(
                [
                    *(sys.executable, "-m", "holdfast.checkpoint.memory", "--folder", str(self.folder)),
                    *("--listen", self.address, "--port-file", str(told), "--key-file", str(self.home / "key")),
                    *self.options,
                ],
                stderr=log,
            )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=PATIENCE_S)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        return self.process.wait(timeout=PATIENCE_S)

    def log(self) -> str:
        return (self.home / "log").read_text()

    def held(self, step: int, rank: int = 0) -> HeldSnapshot | None:
        """What lies in this node's memory of that rank and step."""
        for path in sorted(self.folder.glob("*.own")) + sorted(self.folder.glob("*.copy")):
            try:
                found = SharedBuffer.open(path).read()
            except FileNotFoundError:  # The server has dropped it meanwhile.
                continue
            if found is not None and (found.record.rank, found.record.step) == (rank, step):
                return found
        return None

    def content(self, which: Which, size: int) -> bytes:
        """The image as this node's server gives it out."""
        peer = Peer(self.address, KEY)
        found = bytearray(size)
        assert peer.read(which, 0, memoryview(found)) == size
        peer.close()
        return bytes(found)


class Worker:
    """Takes snapshots, as a rank does after a step."""

    def __init__(self, node: Node, *, rank: int = 0, world_size: int = 1, slot: int = 0, round: int = 1) -> None:
        self.rank, self.world_size, self.round = rank, world_size, round
        self.store = MemoryStore(node.folder, slot, owner=KEY)

    def snapshot(self, step: int, content: bytes, *keepers: Node | str) -> SharedBuffer:
        wait_until(lambda: self._free(len(content), len(keepers)) is not None)
        buffer = self._free(len(content), len(keepers))
        assert buffer is not None
        buffer.begin()
        buffer.image[: len(content)] = content
        buffer.complete(self.record(step, len(content), *keepers))
        return buffer

    def record(self, step: int, size: int, *keepers: Node | str) -> SnapshotRecord:
        file, name = f"__{self.rank}_0.distcp", f"part.{self.rank}"
        return SnapshotRecord(
            owner=KEY,
            round=self.round,
            rank=self.rank,
            world_size=self.world_size,
            step=step,
            batches=step,
            file=file,
            image_bytes=size,
            entries={name: StoredObject(file=file, start=0, length_bytes=size)},
            paths={name: (name,)},
            keepers=tuple(each if isinstance(each, str) else each.address for each in keepers),
        )

    def _free(self, size: int, keepers: int) -> SharedBuffer | None:
        return self.store.free(capacity_for(size), now_s=time.monotonic(), keepers=keepers)


@contextmanager
def nodes(home: Path, count: int, *options: str) -> Iterator[list[Node]]:
    made = [Node(home / f"node{number}", *options) for number in range(count)]
    try:
        for node in made:
            node.wait()
        yield made
    finally:
        for node in made:
            if node.process.poll() is None:
                node.stop()
            node.reserved.close()


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def reserved_port() -> socket.socket:
    """Bound and never listening: nobody else is given the port, also while its server is dead, and the server,
    which binds with SO_REUSEADDR as this does, may listen there.
    """
    taken = socket.socket()
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    taken.bind(("127.0.0.1", 0))
    return taken


def wait_until(holds: Callable[[], object]) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < ends, "waited in vain"
        time.sleep(0.01)


class Seat(SaveGroup):
    """A rank's place at a table: ranks are threads that exchange words."""

    def __init__(self, rank: int, words: list[bytes], barrier: threading.Barrier) -> None:
        self.rank, self.world_size = rank, len(words)
        self._words, self._barrier = words, barrier

    def exchange(self, words: bytes) -> list[bytes]:
        self._words[self.rank] = words
        self._barrier.wait()
        heard = list(self._words)
        self._barrier.wait()
        return heard


def recollect_on(members: Sequence[Node], *, patience_s: float = PATIENCE_S) -> list[Recollection]:
    """What each finds in a new round that has one rank on each node, and gives up a peer after `patience_s`."""
    words, barrier = [b""] * len(members), threading.Barrier(len(members), timeout=PATIENCE_S)

    def find(rank: int) -> Recollection:
        memory = NodeMemory(MemoryOrder(1, 0), str(members[rank].folder), members[rank].address)
        restore = Restore(tier=Tier.MEMORY, owner=KEY)
        part = Assignment("job", 9, rank, 0, len(members), 1, Endpoint("", 0), restore, "", memory=memory)
        return recollect(Seat(rank, words, barrier), part, patience_s=patience_s)

    with ThreadPoolExecutor(len(members)) as threads:
        return list(threads.map(find, range(len(members))))
