"""Buckets of Amazon S3 and what speaks its protocol, Google Cloud Storage and Azure Blob Storage.

Credentials, region and endpoint come from where each vendor's own tools take them: AWS_*, GOOGLE_*, AZURE_* in the
environment, or the identity of the machine or pod. All requests are tried again, with growing pauses, after a
server's error (5xx), a lost connection or a time-out, for a minute at most.
"""

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import from_url

_TRIES_AGAIN_MAX = 8
_TRIES_AGAIN_FOR = timedelta(seconds=60)
_ANSWER_WITHIN = timedelta(seconds=60)  # A part of an upload over a line of 2 Mbit/s takes as long.
_PART_BYTES = 16 << 20
_PARTS_MAX = 9_000  # S3 takes 10,000. Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html
_PARTS_AT_ONCE = 4  # This many parts are in memory, besides one that is being filled.
_PIECE_BYTES = 1 << 20


class CloudBucket:
    """The `Bucket` at a uri of scheme s3, gs, az, abfs or abfss."""

    def __init__(
        self, uri: str, *, tries_again_max: int = _TRIES_AGAIN_MAX, answer_within: timedelta = _ANSWER_WITHIN
    ) -> None:
        """Raises ValueError for a uri that names no bucket."""
        self.uri = uri.rstrip("/")
        try:
            self._store = from_url(
                self.uri,
                # Without encryption only where the endpoint that is given says http.
                client_options={"timeout": answer_within, "allow_http": True},
                retry_config={"max_retries": tries_again_max, "retry_timeout": _TRIES_AGAIN_FOR},
            )
        except BaseError as error:
            raise ValueError(_first_line(error)) from error

    def put(self, name: str, parts: Sequence[memoryview]) -> None:
        """In several parts where it is large. One that fails leaves no object; what was uploaded of it by then is
        the store's to expire.
        """
        views = [part.cast("B") for part in parts if part.nbytes]
        size_bytes = sum(view.nbytes for view in views)
        part_bytes = max(_PART_BYTES, -(-size_bytes // _PARTS_MAX))
        with _as_os_errors():
            # Not in a `with`: that would complete what was cut short.
            writer = obstore.open_writer(self._store, name, buffer_size=part_bytes, max_concurrency=_PARTS_AT_ONCE)
            for view in views:
                for start in range(0, view.nbytes, _PIECE_BYTES):
                    writer.write(view[start : start + _PIECE_BYTES])
            writer.close()

    def create(self, name: str, content: bytes) -> bool:
        try:
            with _as_os_errors():
                obstore.put(self._store, name, content, mode="create", use_multipart=False)
        except FileExistsError:
            return False
        return True

    def part(self, name: str, start: int, end: int) -> bytes:
        with _as_os_errors():
            return bytes(obstore.get_range(self._store, name, start=start, end=end))

    def size_bytes(self, name: str) -> int:
        with _as_os_errors():
            return int(obstore.head(self._store, name)["size"])

    def modified_at(self, name: str) -> float:
        with _as_os_errors():
            return obstore.head(self._store, name)["last_modified"].timestamp()

    def names(self, folder: str) -> list[str]:
        with _as_os_errors():
            found = obstore.list_with_delimiter(self._store, folder or None)
        paths = [*found["common_prefixes"], *(each["path"] for each in found["objects"])]
        return sorted({path.rstrip("/").rpartition("/")[2] for path in paths})

    def delete(self, folder: str, names: Sequence[str] | None = None) -> None:
        with _as_os_errors():
            if names is None:
                for batch in obstore.list(self._store, folder):
                    obstore.delete(self._store, [each["path"] for each in batch])
            for name in names or ():
                with suppress(FileNotFoundError):
                    obstore.delete(self._store, f"{folder}/{name}")


@contextmanager
def _as_os_errors() -> Iterator[None]:
    """The library raises FileNotFoundError as such, and errors of its own for everything else."""
    try:
        yield
    except AlreadyExistsError as error:
        raise FileExistsError(errno.EEXIST, _first_line(error)) from error
    except BaseError as error:
        raise OSError(errno.EIO, _first_line(error)) from error


def _first_line(error: Exception) -> str:
    """Without the dump of the library's own values."""
    return str(error).partition("\n")[0]
