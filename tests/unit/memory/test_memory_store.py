"""Which of a worker's buffers the next snapshot may overwrite."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from holdfast.checkpoint.capture.tier import MemoryStore
from holdfast.checkpoint.format.index import StoredObject
from holdfast.checkpoint.memory.nodesnapshots import own_name, slot_of
from holdfast.checkpoint.memory.record import SnapshotRecord
from holdfast.checkpoint.memory.sharedbuffer import SharedBuffer

KIB = 1 << 10


def a_record(step: int, **changes: object) -> SnapshotRecord:
    entries = {"x": StoredObject(file="f", start=0, length_bytes=8)}
    record = SnapshotRecord("life", 2, 0, 1, step, step, "f", 8, entries, {"x": ("x",)})
    return msgspec.structs.replace(record, **changes)


@pytest.fixture
def store(tmp_path: Path) -> MemoryStore:
    return MemoryStore(tmp_path, 0, owner="life")


def take(
    store: MemoryStore, step: int, *, keepers: int = 0, copied: int = 0, now_s: float = 0.0
) -> SharedBuffer | None:
    buffer = store.free(64 * KIB, now_s=now_s, keepers=keepers)
    if buffer is not None:
        buffer.begin()
        buffer.complete(a_record(step))
        buffer.mark_copied(buffer.generation, copied)
    return buffer


def steps(folder: Path) -> set[int]:
    held = [SharedBuffer.open(path).read() for path in folder.iterdir()]
    return {found.record.step for found in held if found is not None}


def test_without_keepers_two_arenas_take_turns(store: MemoryStore, tmp_path: Path) -> None:
    for step in range(1, 6):
        assert take(store, step) is not None
        assert step in steps(tmp_path)
    assert steps(tmp_path) == {4, 5}


def test_the_newest_that_has_a_copy_stays_while_newer_ones_have_none(store: MemoryStore, tmp_path: Path) -> None:
    take(store, 1, keepers=1, copied=1)
    for step in range(2, 6):
        assert take(store, step, keepers=1) is not None
        assert {1, step} <= steps(tmp_path)


def test_a_snapshot_is_left_out_while_every_arena_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.checkpoint.capture.tier.SPARES", 0)
    store = MemoryStore(tmp_path, 0, owner="life")
    take(store, 1, keepers=1, copied=1)
    sent = take(store, 2, keepers=1)
    assert sent is not None
    sent.hold(sent.generation, until_s=10.0)
    assert take(store, 3, keepers=1) is not None
    assert take(store, 4, keepers=1, now_s=9.0) is None
    assert steps(tmp_path) == {1, 2, 3}
    assert take(store, 4, keepers=1, now_s=10.0) is sent  # Whoever read it has died.


def test_spares_are_made_in_the_background_while_copies_are_slow(store: MemoryStore, tmp_path: Path) -> None:
    take(store, 1, keepers=1, copied=1)
    sent = take(store, 2, keepers=1)
    assert sent is not None
    sent.hold(sent.generation, until_s=10.0)
    take(store, 3, keepers=1)
    assert take(store, 4, keepers=1) is None
    spare = store._spare
    if spare is not None:
        spare.join(timeout=30)
    for step in range(5, 9):
        assert take(store, step, keepers=1) is not None
        assert {1, 2, step} <= steps(tmp_path)
    assert len(list(tmp_path.iterdir())) == 4


def test_a_spare_that_has_no_room_is_not_tried_again(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    take(store, 1, keepers=1, copied=1)
    sent = take(store, 2, keepers=1)
    assert sent is not None
    sent.hold(sent.generation, until_s=10.0)
    take(store, 3, keepers=1)

    def refuse(*_: object) -> SharedBuffer:
        raise OSError(28, "a snapshot in memory needs 9 bytes and 8 are free")

    monkeypatch.setattr(SharedBuffer, "create", refuse)
    assert take(store, 4, keepers=1) is None
    assert store._spare is not None
    store._spare.join(timeout=30)
    assert take(store, 5, keepers=1) is None
    assert caplog.text.count("no spare buffer") == 1


def test_a_pinned_arena_is_not_given_away(store: MemoryStore, tmp_path: Path) -> None:
    saved = take(store, 1)
    assert saved is not None
    store.pin(saved)
    for step in range(2, 6):
        take(store, step)
        assert {1, step} <= steps(tmp_path)
    store.unpin(saved)
    assert take(store, 6) is saved


def test_a_torn_arena_is_the_first_to_be_written_again(store: MemoryStore, tmp_path: Path) -> None:
    take(store, 1)
    torn = take(store, 2)
    assert torn is not None
    torn.begin()
    again = MemoryStore(tmp_path, 0, owner="life")
    buffer = again.free(64 * KIB, now_s=0.0)
    assert buffer is not None
    assert buffer.path == torn.path
    assert steps(tmp_path) == {1}


def test_an_older_round_counts_as_older_whatever_its_step(store: MemoryStore, tmp_path: Path) -> None:
    take(store, 90)
    buffer = store.free(64 * KIB, now_s=0.0)
    assert buffer is not None
    buffer.begin()
    buffer.complete(a_record(5, round=3))
    take(store, 6)
    assert steps(tmp_path) == {5, 6}


@pytest.mark.parametrize(("owner", "since_round"), [("another life", 0), ("life", 3)])
def test_what_counts_no_more_may_be_overwritten(tmp_path: Path, owner: str, since_round: int) -> None:
    old = MemoryStore(tmp_path, 0, owner="life")
    first = take(old, 1)
    new = MemoryStore(tmp_path, 0, owner=owner, since_round=since_round)
    buffer = new.free(64 * KIB, now_s=0.0)
    assert first is not None
    assert buffer is not None
    assert buffer.path == first.path


def test_an_image_that_outgrew_its_arena_gets_a_larger_one(store: MemoryStore, tmp_path: Path) -> None:
    take(store, 1)
    take(store, 2)
    buffer = store.free(128 * KIB, now_s=0.0)
    assert buffer is not None
    assert buffer.capacity_bytes == 128 * KIB
    assert steps(tmp_path) == {2}
    with_records = store.free(128 * KIB, now_s=0.0, record_bytes=16 << 20)
    assert with_records is not None
    assert with_records.record_room_bytes == 16 << 20


def test_arenas_made_beforehand_are_the_ones_given(store: MemoryStore, tmp_path: Path) -> None:
    store.prepare(64 * KIB, buffers=2)
    made = {path.stat().st_ino for path in tmp_path.iterdir()}
    assert len(made) == 2
    for step in range(1, 4):
        take(store, step)
    assert {path.stat().st_ino for path in tmp_path.iterdir()} == made


def test_names_tell_a_workers_own_arenas_from_others() -> None:
    assert slot_of(own_name(3, 1)) == 3
    assert slot_of("rank-00003.0.copy") is None


def test_arenas_deleted_under_a_worker_are_made_anew(store: MemoryStore, tmp_path: Path) -> None:
    take(store, 1)
    take(store, 2)
    for path in tmp_path.iterdir():
        path.unlink()
    take(store, 3)
    assert steps(tmp_path) == {3}


@pytest.mark.parametrize(
    ("left_bytes", "is_pinned", "stays"),
    [(64 * KIB, False, {1, 2}), (32 * KIB, False, {2}), (-8192 * KIB, False, set()), (-8192 * KIB, True, {2})],
    ids=["enough is left", "one is enough", "both", "a save reads the newest"],
)
def test_snapshots_give_way_to_others_in_their_file_system_the_newest_last(
    store: MemoryStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    left_bytes: int,
    is_pinned: bool,
    stays: set[int],
) -> None:
    take(store, 1)
    newest = take(store, 2)
    assert newest is not None
    if is_pinned:
        store.pin(newest)

    def sizes() -> int:
        return sum(each.stat().st_size for each in tmp_path.iterdir())

    room = sizes() + left_bytes  # so much of the file system do others leave

    def usage(folder: Path) -> SimpleNamespace:
        return SimpleNamespace(free=max(0, room - sizes()))

    monkeypatch.setattr(shutil, "disk_usage", usage)
    if left_bytes < 64 * KIB:
        with pytest.raises(OSError, match="are free for it"):
            store.free(64 * KIB, now_s=0.0)
    else:
        assert store.free(64 * KIB, now_s=0.0) is not None
    assert steps(tmp_path) == stays
