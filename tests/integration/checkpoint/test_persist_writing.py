"""One file, written to real file systems: the disk and memory."""

import errno
import fcntl
import mmap
import os
import random
import resource
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from patience import patient
from recorder import Call, Recorder

from holdfast.checkpoint.format.manifest import BLOCK_BYTES, record_of
from holdfast.checkpoint.storage import filewriter
from holdfast.checkpoint.storage.filewriter import STRIDE_BYTES, write_file

LARGE_BYTES = 2 * STRIDE_BYTES + BLOCK_BYTES + 12345


@pytest.fixture(scope="module")
def image() -> memoryview:
    """Aligned, and different everywhere."""
    memory = mmap.mmap(-1, LARGE_BYTES)
    memory.write(random.Random(7).randbytes(LARGE_BYTES))
    return memoryview(memory)


@pytest.fixture(params=["disk", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    if request.param == "disk":
        yield tmp_path
        return
    shared = Path("/dev/shm") / f"holdfast-{os.getpid()}-{tmp_path.name}"
    shared.mkdir()
    yield shared
    for path in shared.iterdir():
        path.unlink()
    shared.rmdir()


def whole(image: memoryview) -> list[memoryview]:
    return [image]


def crooked(image: memoryview) -> list[memoryview]:
    return [image[1:]]


def in_pieces(image: memoryview) -> list[memoryview]:
    cuts = [0, 1, 1, 4096, 5000, BLOCK_BYTES + 3, STRIDE_BYTES, STRIDE_BYTES + 4096, LARGE_BYTES - 1, LARGE_BYTES]
    return [image[start:end] for start, end in pairwise(cuts)]


def small(image: memoryview) -> list[memoryview]:
    return [image[:5], image[9:700]]


def even(image: memoryview) -> list[memoryview]:
    return [image[:STRIDE_BYTES], image[STRIDE_BYTES : 2 * STRIDE_BYTES]]


def nothing(image: memoryview) -> list[memoryview]:
    return [image[:0]]


@pytest.mark.parametrize("cut", [whole, crooked, in_pieces, even, small, nothing])
def test_what_is_written_is_what_was_given_and_what_the_record_says(
    cut: Callable[[memoryview], list[memoryview]], image: memoryview, folder: Path
) -> None:
    parts = cut(image)
    (folder / "file").write_bytes(bytes(LARGE_BYTES + 1))
    record = write_file(folder / "file", parts)
    assert (folder / "file").read_bytes() == b"".join(parts)
    assert record == record_of(parts)


class Stubborn(Recorder):
    """A file system that does not take all that it is given."""

    refuses_to_open = False
    refuses_to_write = False
    takes_bytes = STRIDE_BYTES

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT and self.refuses_to_open:
            raise OSError(errno.EINVAL, "Invalid argument")
        return super().open(path, flags, mode)

    def pwrite(self, descriptor: int, content: memoryview, offset: int) -> int:
        if self.refuses_to_write and fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return super().pwrite(descriptor, content[: self.takes_bytes], offset)


@pytest.mark.parametrize(
    "stubbornness",
    [
        {"refuses_to_open": True},
        {"refuses_to_write": True},
        {"takes_bytes": 3 << 20},
        {"takes_bytes": 1_000_001},
        {"takes_bytes": 1_000_001, "refuses_to_open": True},
    ],
    ids=str,
)
def test_a_file_system_that_does_not_take_it_all_gets_the_same_file(
    stubbornness: dict[str, int], image: memoryview, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Stubborn(tmp_path).watch(monkeypatch)
    vars(recorder).update(stubbornness)
    assert write_file(tmp_path / "file", [image]) == record_of([image])
    assert (tmp_path / "file").read_bytes() == image


@pytest.mark.parametrize("thread", ["MainThread", "holdfast-writer"])
def test_an_error_in_any_thread_fails_the_write_and_leaves_no_thread(
    thread: str, image: memoryview, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writings: list[filewriter._Writing] = []

    class Watched(filewriter._Writing):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            writings.append(self)

    def fail(call: Call) -> None:
        if call.kind != "write":
            return
        if threading.current_thread().name == thread:
            raise OSError(errno.EIO, "Input/output error")
        deadline = time.monotonic() + patient(30)
        while not writings[0]._errors:  # Until it is known to both.
            assert time.monotonic() < deadline, "the other thread has work as well"
            time.sleep(0.001)

    monkeypatch.setattr(filewriter, "_Writing", Watched)
    recorder = Recorder(tmp_path, fail).watch(monkeypatch)
    with pytest.raises(OSError, match="Input/output error"):
        write_file(tmp_path / "file", [image])
    assert not [each for each in threading.enumerate() if each.name == "holdfast-writer"]
    assert len([call for call in recorder.calls if call.kind == "write"]) <= 1, "nobody goes on after an error"
    assert not [call for call in recorder.calls if call.kind == "sync"]


def test_a_disk_that_takes_nothing_and_says_nothing_is_an_error(
    image: memoryview, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vars(Stubborn(tmp_path).watch(monkeypatch))["takes_bytes"] = 0
    with pytest.raises(OSError, match="takes nothing"):
        write_file(tmp_path / "file", [image])


def test_strides_that_end_in_any_order_give_the_same_record(
    image: memoryview, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dawdle(call: Call) -> None:
        if call.kind == "write" and call.offset == 0:
            time.sleep(0.2)

    Recorder(tmp_path, dawdle).watch(monkeypatch)
    assert write_file(tmp_path / "file", [image]) == record_of([image])
    assert (tmp_path / "file").read_bytes() == image


@pytest.fixture
def size_limit() -> Iterator[int]:
    """No file of this process may grow beyond it, as on a disk with no more room."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (STRIDE_BYTES, hard))
    yield STRIDE_BYTES
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("reserves", [True, False], ids=["told when room is reserved", "told when it is written"])
def test_a_file_that_may_not_be_as_large_is_an_error(
    reserves: bool, size_limit: int, image: memoryview, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not reserves:
        monkeypatch.setattr(filewriter, "reserve", lambda descriptor, size_bytes: None)
    with pytest.raises(OSError, match="File too large"):
        write_file(tmp_path / "file", [image])
    assert (tmp_path / "file").stat().st_size <= size_limit
    assert not [each for each in threading.enumerate() if each.name == "holdfast-writer"]
