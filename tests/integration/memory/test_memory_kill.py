"""A worker that is killed between any two lines of taking a snapshot leaves the one before it whole."""

import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from holdfast.checkpoint.capture import tier as store_module
from holdfast.checkpoint.capture.tier import MemoryStore
from holdfast.checkpoint.format.index import StoredObject
from holdfast.checkpoint.format.manifest import record_of
from holdfast.checkpoint.memory import sharedbuffer as buffer_module
from holdfast.checkpoint.memory.record import SnapshotRecord
from holdfast.checkpoint.memory.sharedbuffer import SharedBuffer

pytestmark = pytest.mark.long

IMAGE_BYTES = 64 << 10
TRACED = {buffer_module.__file__, store_module.__file__, __file__}


def take(store: MemoryStore, step: int) -> None:
    buffer = store.free(IMAGE_BYTES, now_s=time.monotonic())
    assert buffer is not None
    buffer.begin()
    for start in range(0, IMAGE_BYTES, IMAGE_BYTES // 4):
        buffer.image[start : start + IMAGE_BYTES // 4] = bytes([step]) * (IMAGE_BYTES // 4)
    entries = {"x": StoredObject(file="f", start=0, length_bytes=IMAGE_BYTES)}
    buffer.complete(SnapshotRecord("life", 1, 0, 1, step, step, "f", IMAGE_BYTES, entries, {"x": ("x",)}))
    buffer.seal(buffer.generation, record_of([buffer.image[:IMAGE_BYTES]]).blocks)


def take_and_die(store: MemoryStore, step: int, *, at_line: int) -> bool:
    """In a process of its own; whether it was killed before it had finished."""
    child = os.fork()
    if child:
        return os.WIFSIGNALED(os.waitpid(child, 0)[1])
    left = at_line

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in TRACED:
            return None
        left -= event == "line"
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    take(store, step)
    os._exit(0)


def test_whatever_line_it_dies_at_the_newest_whole_snapshot_is_whole(tmp_path: Path) -> None:
    store = MemoryStore(tmp_path, 0, owner="life")
    take(store, 1)
    take(store, 2)
    step, line, seen = 3, 0, set()
    while take_and_die(store, step, at_line=line):
        found = [held_steps(path) for path in sorted(tmp_path.glob("*.own"))]
        newest = max(each for each in found if each is not None)
        assert newest in (step - 1, step)
        seen.add(newest - step)
        if newest == step:  # It died after the snapshot counted.
            step += 1
        line += 1
    assert seen == {-1, 0}
    assert line > 30


def held_steps(path: Path) -> int | None:
    """The step that is held there; its image and its hashes are those of that step."""
    buffer = SharedBuffer.open(path)
    held = buffer.read()
    if held is None:
        return None
    step = held.record.step
    assert bytes(buffer.image[:IMAGE_BYTES]) == bytes([step]) * IMAGE_BYTES
    assert held.blocks in (None, record_of([buffer.image[:IMAGE_BYTES]]).blocks)
    return step
