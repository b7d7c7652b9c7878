"""A worker that is killed between any two lines of taking a snapshot leaves the one before it whole."""

import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from holdfast.checkpoint.index import StoredObject
from holdfast.checkpoint.manifest import record_of
from holdfast.checkpoint.memory import arena as arena_module
from holdfast.checkpoint.memory import shelf as shelf_module
from holdfast.checkpoint.memory.arena import Arena
from holdfast.checkpoint.memory.record import SnapshotRecord
from holdfast.checkpoint.memory.shelf import Shelf

IMAGE_BYTES = 64 << 10
TRACED = {arena_module.__file__, shelf_module.__file__, __file__}


def take(shelf: Shelf, step: int) -> None:
    arena = shelf.free(IMAGE_BYTES, now_s=time.monotonic())
    assert arena is not None
    arena.begin()
    for start in range(0, IMAGE_BYTES, IMAGE_BYTES // 4):
        arena.image[start : start + IMAGE_BYTES // 4] = bytes([step]) * (IMAGE_BYTES // 4)
    entries = {"x": StoredObject(file="f", start=0, length_bytes=IMAGE_BYTES)}
    arena.complete(SnapshotRecord("life", 1, 0, 1, step, step, "f", IMAGE_BYTES, entries, {"x": ("x",)}))
    arena.seal(arena.generation, record_of([arena.image[:IMAGE_BYTES]]).blocks)


def take_and_die(shelf: Shelf, step: int, *, at_line: int) -> bool:
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
    take(shelf, step)
    os._exit(0)


def test_whatever_line_it_dies_at_the_newest_whole_snapshot_is_whole(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, 0, owner="life")
    take(shelf, 1)
    take(shelf, 2)
    step, line, seen = 3, 0, set()
    while take_and_die(shelf, step, at_line=line):
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
    arena = Arena.open(path)
    held = arena.read()
    if held is None:
        return None
    step = held.record.step
    assert bytes(arena.image[:IMAGE_BYTES]) == bytes([step]) * IMAGE_BYTES
    assert held.blocks in (None, record_of([arena.image[:IMAGE_BYTES]]).blocks)
    return step
