"""One rank's snapshot in a file of shared memory: whole or not at all."""

import ctypes
import errno
import mmap
import shutil
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from holdfast.api.errors import Damaged, InvalidInput
from holdfast.checkpoint.format.index import StoredObject
from holdfast.checkpoint.format.manifest import BLOCK_BYTES, record_of
from holdfast.checkpoint.memory.record import SnapshotRecord
from holdfast.checkpoint.memory.sharedbuffer import SharedBuffer, capacity_for

MIB = 1 << 20


def make_record(step: int = 7, **changes: object) -> SnapshotRecord:
    record = SnapshotRecord(
        owner="life",
        round=2,
        rank=3,
        world_size=4,
        step=step,
        batches=step,
        file="__3_0.distcp",
        image_bytes=5 * MIB,
        entries={"extra": StoredObject(file="__3_0.distcp", start=0, length_bytes=5 * MIB)},
        paths={"extra": ("extra", 0)},
    )
    return msgspec.structs.replace(record, **changes)


@pytest.fixture
def buffer(tmp_path: Path) -> SharedBuffer:
    return SharedBuffer.create(tmp_path / "a.own", 8 * MIB)


def fill(buffer: SharedBuffer, record: SnapshotRecord, value: int = 1) -> None:
    buffer.begin()
    buffer.image[: record.image_bytes] = bytes([value]) * record.image_bytes
    buffer.complete(record)


def test_a_new_arena_holds_nothing(buffer: SharedBuffer) -> None:
    assert buffer.read() is None
    assert buffer.capacity_bytes == 8 * MIB
    assert buffer.image.nbytes == 8 * MIB


def test_what_was_completed_is_read_by_another_process_mapping(buffer: SharedBuffer) -> None:
    fill(buffer, make_record(), value=9)
    other = SharedBuffer.open(buffer.path)
    held = other.read()
    assert held is not None
    assert held.record == make_record()
    assert (held.blocks, held.copies) == (None, 0)
    assert other.image[5 * MIB - 1] == 9


def test_the_image_begins_at_a_page(buffer: SharedBuffer) -> None:
    assert ctypes.addressof(ctypes.c_char.from_buffer(buffer.image)) % mmap.PAGESIZE == 0


def test_a_begun_arena_holds_nothing_until_it_is_complete_again(buffer: SharedBuffer) -> None:
    fill(buffer, make_record(7))
    buffer.begin()
    assert buffer.read() is None
    assert SharedBuffer.open(buffer.path).read() is None
    buffer.complete(make_record(8))
    held = buffer.read()
    assert held is not None
    assert held.record.step == 8


def test_one_that_was_given_up_while_it_was_written_is_begun_anew(buffer: SharedBuffer) -> None:
    buffer.begin()
    before = buffer.generation
    buffer.begin()
    assert buffer.generation % 2 == 1
    assert buffer.generation > before
    buffer.complete(make_record())
    assert buffer.read() is not None


def test_the_seal_and_the_copies_belong_to_one_generation(buffer: SharedBuffer) -> None:
    fill(buffer, make_record(7))
    blocks = record_of([buffer.image[: 5 * MIB]]).blocks
    buffer.seal(buffer.generation, blocks)
    buffer.mark_copied(buffer.generation, 2)
    held = buffer.read()
    assert held is not None
    assert (held.blocks, held.copies) == (blocks, 2)
    assert len(blocks) == 2
    fill(buffer, make_record(8))
    held = buffer.read()
    assert held is not None
    assert (held.blocks, held.copies) == (None, 0)


def test_a_seal_that_comes_too_late_is_not_taken(buffer: SharedBuffer) -> None:
    fill(buffer, make_record(7))
    late = buffer.generation
    blocks = record_of([buffer.image[: 5 * MIB]]).blocks
    fill(buffer, make_record(8), value=2)
    buffer.seal(late, blocks)
    buffer.mark_copied(late, 1)
    held = buffer.read()
    assert held is not None
    assert (held.blocks, held.copies) == (None, 0)


@pytest.mark.parametrize("length", [0, 1, 4095, 4096, 100_000])
def test_a_file_that_is_cut_is_no_arena(buffer: SharedBuffer, length: int) -> None:
    cut = buffer.path.with_name("cut.own")
    cut.write_bytes(buffer.path.read_bytes()[:length])
    with pytest.raises(Damaged):
        SharedBuffer.open(cut)


def test_a_file_of_something_else_is_no_arena(tmp_path: Path) -> None:
    (tmp_path / "x.own").write_bytes(b"x" * 100_000)
    with pytest.raises(Damaged):
        SharedBuffer.open(tmp_path / "x.own")


def test_a_flipped_bit_in_record_or_seal_is_noticed(buffer: SharedBuffer) -> None:
    fill(buffer, make_record())
    blocks = record_of([buffer.image[: 5 * MIB]]).blocks
    buffer.seal(buffer.generation, blocks)
    whole = buffer.path.read_bytes()
    record_at = whole.index(b"owner")
    for place in (record_at, record_at + 50, whole.index(bytes.fromhex(blocks[1]))):
        flipped = bytearray(whole)
        flipped[place] ^= 1
        path = buffer.path.with_name("flipped.own")
        path.write_bytes(flipped)
        held = SharedBuffer.open(path).read()
        assert held is None or held.blocks is None


def test_what_does_not_fit_is_refused_and_leaves_nothing(buffer: SharedBuffer) -> None:
    buffer.begin()
    with pytest.raises(InvalidInput, match="image_bytes"):
        buffer.complete(make_record(image_bytes=9 * MIB))
    with pytest.raises(InvalidInput, match="record_bytes"):
        buffer.complete(make_record(paths={"p": ("x" * (5 * MIB),)}))
    assert buffer.read() is None


def test_too_little_memory_says_what_is_needed_and_leaves_no_file(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    with pytest.raises(OSError, match=r"needs \d+ bytes and \d+ are free") as refused:
        SharedBuffer.create(tmp_path / "huge.own", free + (1 << 36))
    assert refused.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []


def test_half_of_what_is_free_is_left_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = 60 * MIB
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
    SharedBuffer.create(tmp_path / "a.own", 20 * MIB)
    with pytest.raises(OSError, match=rf"needs \d+ bytes and {30 * MIB} are free for it"):
        SharedBuffer.create(tmp_path / "b.own", 40 * MIB)


@pytest.mark.parametrize("allowances", [[3 * MIB], [64 * MIB, 64 * MIB, 0]], ids=["at once", "used up meanwhile"])
def test_a_limit_that_has_the_kernel_kill_somebody_is_not_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowances: list[int]
) -> None:
    monkeypatch.setattr("holdfast.checkpoint.memory.sharedbuffer.allowance_bytes", lambda: allowances.pop(0))
    with pytest.raises(OSError, match=r"needs \d+ bytes and (3145728|67108864) are free") as refused:
        SharedBuffer.create(tmp_path / "large.own", 40 * MIB)
    assert refused.value.errno == errno.ENOSPC
    assert allowances == []
    assert list(tmp_path.iterdir()) == []


def test_an_arena_replaces_the_one_before_under_its_name(buffer: SharedBuffer) -> None:
    fill(buffer, make_record())
    larger = SharedBuffer.create(buffer.path, 12 * MIB)
    assert larger.read() is None
    assert SharedBuffer.open(buffer.path).capacity_bytes == 12 * MIB
    assert buffer.read() is not None  # Whoever still maps the old file goes on reading it.


def test_who_holds_a_generation_holds_that_one_and_no_longer_than_said(buffer: SharedBuffer) -> None:
    fill(buffer, make_record(7))
    assert not buffer.is_held(100.0)
    buffer.hold(buffer.generation, until_s=105.0)
    assert buffer.is_held(104.9)
    assert not buffer.is_held(105.0)
    fill(buffer, make_record(8))
    assert not buffer.is_held(104.9)


def test_closing_leaves_memory_in_use_alone(buffer: SharedBuffer) -> None:
    fill(buffer, make_record())
    kept = buffer.image[:1]
    buffer.close()
    assert kept[0] == 1
    assert SharedBuffer.open(buffer.path).read() is not None


def test_room_is_left_for_an_image_that_grows_a_little() -> None:
    assert capacity_for(5 * MIB) == 3 * BLOCK_BYTES
    assert capacity_for(BLOCK_BYTES) == 2 * BLOCK_BYTES
