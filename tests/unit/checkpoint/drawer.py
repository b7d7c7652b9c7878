"""A `Storage` in a dictionary, that can die before a rename of its choice and refuse to delete."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from holdfast.checkpoint.format.manifest import FORMAT, NO_KEYS, FileRecord, Manifest, encode, record_of


class PowerCut(Exception):
    """The process died here."""


class Opened:
    """One of a drawer's files."""

    def __init__(self, drawer: "Drawer", name: str) -> None:
        self._drawer, self._name = drawer, name

    def read_into(self, offset: int, memory: memoryview) -> int:
        found = self._drawer.read(self._name, offset, memory.nbytes)
        memory[: len(found)] = found
        return len(found)

    def expect(self, offset: int, length_bytes: int) -> None:
        """It is there."""

    def close(self) -> None:
        """Nothing is open."""


class Drawer:
    keys = NO_KEYS

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.empty: set[str] = set()  # folders, until they are renamed or removed
        self.renames_until_death: int | None = None
        self.removals_until_success = 0
        self.is_held = False

    @property
    def uri(self) -> str:
        return "drawer:"

    def write(self, name: str, parts: Sequence[memoryview]) -> FileRecord:
        self.content[name] = b"".join(parts)
        return record_of(parts)

    def read(self, name: str, offset: int, length_bytes: int) -> bytes:
        self._require(name)
        return self.content[name][offset : offset + length_bytes]

    def size_bytes(self, name: str) -> int:
        self._require(name)
        return len(self.content[name])

    def names(self, folder: str = "") -> list[str]:
        below = f"{folder}/" if folder else ""
        names = (*self.content, *self.empty)
        return sorted({name[len(below) :].split("/")[0] for name in names if name.startswith(below)})

    def free_bytes(self) -> int:
        return 0

    def open(self, name: str) -> Opened:
        return Opened(self, name)

    def modified_at(self, name: str) -> float:
        raise OSError(95, "Operation not supported", name)

    def make(self, folder: str = "") -> None:
        if folder:
            self.empty.add(folder)

    def rename(self, source: str, target: str) -> None:
        if self.renames_until_death is not None:
            self.renames_until_death -= 1
            if self.renames_until_death < 0:
                raise PowerCut
        if source not in self.names():
            raise FileNotFoundError(2, "No such file or directory", source)
        is_folder = source not in self.content
        assert not is_folder or target not in self.names()
        if source in self.empty:
            self.empty.remove(source)
            self.empty.add(target)
        for name in [name for name in self.content if name == source or name.startswith(f"{source}/")]:
            self.content[target + name[len(source) :]] = self.content.pop(name)

    def remove(self, folder: str) -> None:
        if self.removals_until_success:
            self.removals_until_success -= 1
            raise OSError(16, "Device or resource busy", folder)
        self.empty.discard(folder)
        for name in [name for name in self.content if name.startswith(f"{folder}/")]:
            del self.content[name]

    def sync(self, folder: str = "") -> None:
        """Everything is durable at once."""

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        assert not self.is_held
        self.is_held = True
        try:
            yield
        finally:
            self.is_held = False

    def _require(self, name: str) -> None:
        if name not in self.content:
            raise FileNotFoundError(2, "No such file or directory", name)


def manifest_of(
    step: int, *, round: int = 1, parent: int | None = None, healthy: bool | None = None, **files: FileRecord
) -> Manifest:
    return Manifest(FORMAT, step, round, parent, 2, step, files, healthy)


def put(drawer: Drawer, name: str, manifest: Manifest, content: bytes = b"state") -> None:
    """A checkpoint of one file under `name`, whose manifest is otherwise `manifest`."""
    whole = Manifest(
        format=manifest.format,
        step=manifest.step,
        round=manifest.round,
        parent=manifest.parent,
        world_size=manifest.world_size,
        batches=manifest.batches,
        files={"__0_0.distcp": record_of([memoryview(content)])},
        healthy=manifest.healthy,
    )
    drawer.content[f"{name}/__0_0.distcp"] = content
    drawer.content[f"{name}/manifest.json"] = encode(whole)
