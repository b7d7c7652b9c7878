"""What a node keeps in its memory, for how long, and what it refuses to keep."""

import shutil
from collections import namedtuple
from pathlib import Path

import msgspec
import pytest

from holdfast.checkpoint.format.index import StoredObject
from holdfast.checkpoint.memory.copies import CopyReceiver
from holdfast.checkpoint.memory.nodesnapshots import NodeSnapshots, copied_rank, copy_name, outdated, own_name
from holdfast.checkpoint.memory.protocol import Channel, Kept, Put, Refused
from holdfast.checkpoint.memory.record import SnapshotRecord
from holdfast.checkpoint.memory.sharedbuffer import SharedBuffer

KIB = 1 << 10
OWN = own_name(0, 0)

Usage = namedtuple("Usage", "total used free")


def a_record(**changes: object) -> SnapshotRecord:
    entries = {"x": StoredObject(file="f", start=0, length_bytes=8)}
    record = SnapshotRecord("life", 2, 3, 4, 10, 10, "f", 8, entries, {"x": ("x",)})
    return msgspec.structs.replace(record, **changes)


def leave(folder: Path, name: str, **changes: object) -> SharedBuffer:
    buffer = SharedBuffer.create(folder / name, 64 * KIB)
    buffer.begin()
    buffer.complete(a_record(**changes))
    return buffer


@pytest.fixture
def holdings(tmp_path: Path) -> NodeSnapshots:
    return NodeSnapshots(tmp_path, "life")


def dropped(holdings: NodeSnapshots) -> set[str]:
    holdings.refresh()
    return {each.buffer.path.name for each in outdated(holdings.all())}


def test_an_older_round_stays_until_a_newer_one_has_two_steps_here(holdings: NodeSnapshots) -> None:
    folder = holdings.folder
    leave(folder, copy_name(3, 0), round=1, step=9)
    leave(folder, own_name(0, 0), round=2, step=10, rank=0)
    assert dropped(holdings) == set()
    leave(folder, own_name(0, 1), round=2, step=11, rank=0)
    assert dropped(holdings) == {copy_name(3, 0)}


def test_where_copies_are_made_an_older_round_stays_until_two_steps_of_a_newer_one_have_theirs(
    holdings: NodeSnapshots,
) -> None:
    """A node that is lost before that would leave nothing whole in any memory."""
    folder, keepers = holdings.folder, ("there:1",)
    leave(folder, copy_name(3, 0), round=1, step=9)
    own = [leave(folder, own_name(0, number), round=2, step=10 + number, keepers=keepers) for number in range(3)]
    assert dropped(holdings) == set()
    own[0].mark_copied(own[0].generation, 1)
    assert dropped(holdings) == set()
    leave(folder, copy_name(4, 0), round=2, step=11)
    assert dropped(holdings) == {copy_name(3, 0)}


def test_a_workers_own_older_arena_stays_as_long_as_the_worker_is_there(holdings: NodeSnapshots) -> None:
    folder = holdings.folder
    for number, (round, step) in enumerate([(1, 9), (2, 10), (2, 11)]):
        leave(folder, own_name(0, number), round=round, step=step, rank=0)
    leave(folder, own_name(1, 0), round=1, step=9, rank=1)
    assert dropped(holdings) == {own_name(1, 0)}


def test_only_what_counts_for_nobody_is_a_stray(holdings: NodeSnapshots) -> None:
    folder = holdings.folder
    leave(folder, own_name(0, 0))
    leave(folder, own_name(0, 1), owner="another life")
    leave(folder, own_name(0, 2)).begin()  # A worker may be writing to it now.
    leave(folder, copy_name(3, 0))
    leave(folder, copy_name(3, 1)).begin()  # Copies are written by this server, which has only started.
    (folder / copy_name(4, 0)).write_bytes(b"no buffer")
    (folder / "something else").write_bytes(b"")
    holdings.refresh()
    assert {each.buffer.path.name for each in holdings.strays()} == {own_name(0, 1), copy_name(3, 1)}
    assert len(holdings.all()) == 2


def test_the_newest_comes_first_and_a_ranks_own_before_the_copy(holdings: NodeSnapshots) -> None:
    folder = holdings.folder
    leave(folder, copy_name(3, 0), round=2, step=10)
    leave(folder, own_name(0, 0), round=2, step=10)
    leave(folder, own_name(0, 1), round=1, step=99)
    holdings.refresh()
    assert [(held.record.age, holding.is_copy) for holding, held in holdings.all()] == [
        ((2, 10), False),
        ((2, 10), True),
        ((1, 99), False),
    ]


def test_an_arena_that_was_replaced_is_looked_at_anew(holdings: NodeSnapshots) -> None:
    leave(holdings.folder, OWN, step=10)
    holdings.refresh()
    leave(holdings.folder, OWN, step=11)
    holdings.refresh()
    assert [held.record.step for _, held in holdings.all()] == [11]


def test_a_folder_that_is_gone_is_said_to_be_gone(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        NodeSnapshots(tmp_path / "gone", "life").refresh()


def test_names_of_copies_tell_whose_they_are() -> None:
    assert copied_rank(copy_name(123456, 1)) == 123456
    assert copied_rank(OWN) is None


NO_PEER: Channel = None  # type: ignore[assignment]
"""What is judged before a byte is taken needs none."""


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"owner": "another life"}, "another life"),
        ({"rank": 4}, "no sense"),
        ({"rank": -1}, "no sense"),
        ({"world_size": 1 << 40, "rank": 1 << 39}, "no sense"),
        ({"image_bytes": -1}, "no sense"),
        ({"image_bytes": 1 << 50}, "no sense"),
        ({"round": 1, "step": 500}, "newer snapshot"),
        ({"image_bytes": 1 << 45, "step": 11}, "bytes of memory and"),
    ],
)
async def test_what_cannot_be_kept_is_refused_with_the_reason(
    holdings: NodeSnapshots, changes: dict[str, object], reason: str
) -> None:
    leave(holdings.folder, copy_name(3, 0))
    holdings.refresh()
    answer = await CopyReceiver(holdings).keep(NO_PEER, Put(a_record(**changes)))
    assert isinstance(answer, Refused)
    assert reason in answer.reason


async def test_what_is_here_already_is_not_sent_again(holdings: NodeSnapshots) -> None:
    leave(holdings.folder, copy_name(3, 0))
    holdings.refresh()
    assert await CopyReceiver(holdings).keep(NO_PEER, Put(a_record())) == Kept()


async def test_some_memory_is_left_for_the_nodes_own_work(
    holdings: NodeSnapshots, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(100 << 20, 40 << 20, 60 << 20))
    answer = await CopyReceiver(holdings).keep(NO_PEER, Put(a_record()))
    assert isinstance(answer, Refused)
    assert "and 62914560 are free" in answer.reason


async def test_copies_of_an_older_round_make_room_for_those_of_a_newer_one(
    holdings: NodeSnapshots, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(holdings.folder, copy_name(1, 0), rank=1, round=1)
    leave(holdings.folder, copy_name(2, 0), rank=2, round=2)
    leave(holdings.folder, own_name(0, 0), rank=0, round=1)
    holdings.refresh()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(100 << 20, 40 << 20, 60 << 20))
    assert isinstance(await CopyReceiver(holdings).keep(NO_PEER, Put(a_record())), Refused)
    assert {each.name for each in holdings.folder.iterdir()} == {copy_name(2, 0), own_name(0, 0)}
