"""A bucket in whatever store fsspec has a driver for."""

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import fsspec  # type: ignore[import-untyped]  # It ships no types.

_PIECE_BYTES = 1 << 20
_PART_BYTES = 16 << 20


class FsspecBucket:
    """The `Bucket` at a uri that fsspec understands. The driver must honour mode="create" of `pipe_file`; one that
    does not is found out when a round enters.
    """

    def __init__(self, uri: str) -> None:
        """Raises ValueError for a uri that no driver is known for, ImportError for a driver that is not there."""
        self.uri = uri.rstrip("/")
        # Whatever a driver remembers of listings is older than what other nodes have put since.
        self._driver, self._root = fsspec.core.url_to_fs(self.uri, use_listings_cache=False)

    def put(self, name: str, parts: Sequence[memoryview]) -> None:
        with _as_os_errors():
            file = self._driver.open(self._path(name), "wb", block_size=_PART_BYTES)
            try:
                for part in parts:
                    view = part.cast("B")
                    for start in range(0, view.nbytes, _PIECE_BYTES):
                        file.write(view[start : start + _PIECE_BYTES])
            except BaseException:
                file.discard()  # `close` would complete what was cut short.
                raise
            file.close()

    def create(self, name: str, content: bytes) -> bool:
        try:
            with _as_os_errors():
                self._driver.pipe_file(self._path(name), content, mode="create")
        except FileExistsError:
            return False
        return True

    def part(self, name: str, start: int, end: int) -> bytes:
        with _as_os_errors():
            return bytes(self._driver.cat_file(self._path(name), start=start, end=end))

    def size_bytes(self, name: str) -> int:
        with _as_os_errors():
            return int(self._driver.info(self._path(name))["size"])

    def modified_at(self, name: str) -> float:
        with _as_os_errors():
            return float(self._driver.modified(self._path(name)).timestamp())

    def names(self, folder: str) -> list[str]:
        try:
            with _as_os_errors():
                self._driver.invalidate_cache()
                found = self._driver.ls(self._path(folder), detail=False)
        except FileNotFoundError:
            return []
        return sorted({path.rstrip("/").rpartition("/")[2] for path in found})

    def delete(self, folder: str, names: Sequence[str] | None = None) -> None:
        with _as_os_errors():
            self._driver.invalidate_cache()
            paths = [self._path(f"{folder}/{name}") for name in names or ()]
            for path in self._driver.find(self._path(folder)) if names is None else paths:
                with suppress(FileNotFoundError):
                    self._driver.rm_file(path)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else str(self._root)


@contextmanager
def _as_os_errors() -> Iterator[None]:
    """Each driver has errors of its own; those are its store's words for "it did not work"."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(errno.EIO, f"{type(error).__name__}: {error}") from error
