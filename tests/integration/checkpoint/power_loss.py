"""What a loss of power may leave on a disk, of what a process did until then.

A file's bytes are sure to be there once the file is synced, its name once its folder is. Of all the rest any part
may be there: the file system writes when and in which order it likes. Renames alone are whole or not at all.

Source: https://man7.org/linux/man-pages/man2/fsync.2.html; for what file systems do to bytes and names that were
not synced, Pillai et al., "All File Systems Are Not Created Equal", OSDI 2014, section 4.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from recorder import Call

_SECTOR_BYTES = 512  # What a disk writes whole.

Entries = dict[str, "Node"]
Kept = Callable[[random.Random, int], list[int]]
"""Which of so many changes that were not synced are on the disk, in order."""


def everything(source: random.Random, count: int) -> list[int]:
    """The process died, the machine did not."""
    return list(range(count))


def nothing(source: random.Random, count: int) -> list[int]:
    return []


def beginning(source: random.Random, count: int) -> list[int]:
    """The file system keeps the order."""
    return list(range(source.randint(0, count)))


def any_of_it(source: random.Random, count: int) -> list[int]:
    return [number for number in range(count) if source.random() < 0.5]


@dataclass
class Node:
    """A file or a folder: as the process sees it, as it is sure to be, and how the one became the other."""

    is_folder: bool
    entries: Entries = field(default_factory=dict)
    synced_entries: Entries = field(default_factory=dict)
    entry_changes: list[dict[str, "Node | None"]] = field(default_factory=list)
    synced_content: bytes = b""
    writes: list[Call] = field(default_factory=list)

    def enter(self, change: dict[str, "Node | None"]) -> None:
        self.entry_changes.append(change)
        _apply(self.entries, change)

    def sync(self) -> None:
        self.synced_entries = dict(self.entries)
        self.entry_changes.clear()
        self.synced_content = self._content(self.writes, None)
        self.writes.clear()

    def remains(self, kept: Kept, source: random.Random) -> "bytes | Entries":
        if not self.is_folder:
            survivors = [self.writes[number] for number in kept(source, len(self.writes))]
            return self._content(survivors, None if kept is everything else source)
        found = dict(self.synced_entries)
        for number in kept(source, len(self.entry_changes)):
            _apply(found, self.entry_changes[number])
        return found

    def _content(self, writes: Iterable[Call], tear: random.Random | None) -> bytes:
        content = bytearray(self.synced_content)
        writes = list(writes)
        for call in writes:
            if call.kind == "cut":
                del content[call.size_bytes :]
                content.extend(bytes(call.size_bytes - len(content)))
                continue
            data = call.content
            if tear is not None and call is writes[-1] and tear.random() < 0.5:
                data = data[: tear.randrange(len(data) // _SECTOR_BYTES + 1) * _SECTOR_BYTES]
            content.extend(bytes(max(call.offset + len(data) - len(content), 0)))
            content[call.offset : call.offset + len(data)] = data
        return bytes(content)


class Disk:
    """Fed with the calls of a process, in order."""

    def __init__(self) -> None:
        self._root = Node(is_folder=True)

    def do(self, call: Call) -> None:
        if call.kind == "said" or call.name == "..":
            return
        if call.kind in ("write", "cut"):
            self._find(call.name).writes.append(call)
        elif call.kind == "sync":
            self._find(call.name).sync()
        elif call.name:
            folder, _, name = call.name.rpartition("/")
            self._find(folder).enter(self._change(call, name))

    def after_power_loss(self, kept: Kept, source: random.Random, target: Path) -> None:
        """Make `target`, an empty folder, what the disk holds when the power is back."""
        _restore(self._root, kept, source, target)

    def _change(self, call: Call, name: str) -> dict[str, Node | None]:
        if call.kind == "rename":
            return {name: None, call.target.rpartition("/")[2]: self._find(call.name)}
        if call.kind in ("unlink", "rmdir"):
            return {name: None}
        return {name: Node(is_folder=call.kind == "make")}

    def _find(self, name: str) -> Node:
        node = self._root
        for each in name.split("/") if name else ():
            node = node.entries[each]
        return node


def _apply(entries: Entries, change: dict[str, Node | None]) -> None:
    for name, node in change.items():
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


def _restore(node: Node, kept: Kept, source: random.Random, target: Path) -> None:
    remains = node.remains(kept, source)
    if isinstance(remains, bytes):
        target.write_bytes(remains)
        return
    target.mkdir(exist_ok=True)
    for name, each in remains.items():
        _restore(each, kept, source, target / name)
