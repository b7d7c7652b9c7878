"""How a checkpoint in storage compares with snapshots in memory, whose rounds this life of the job numbers."""

from pathlib import Path

import msgspec
import pytest

from holdfast.api.control import Assignment
from holdfast.api.round import Endpoint, Restore, Tier
from holdfast.checkpoint.capture.savegroup import SaveGroup
from holdfast.checkpoint.commit.discovery import committed_name, manifest_path
from holdfast.checkpoint.format.manifest import FORMAT, Manifest, encode
from holdfast.checkpoint.restore.opening import Opening, open_together
from holdfast.checkpoint.storage.local import LocalStorage

ALONE = Assignment(
    job="job",
    round=1,
    rank=0,
    local_rank=0,
    world_size=1,
    local_size=1,
    endpoint=Endpoint("", 0),
    restore=Restore(),
    reason="",
)


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "checkpoints")


def enter(storage: LocalStorage, owner: str, round: int, *, step: int | None = None) -> Opening:
    group = SaveGroup(msgspec.structs.replace(ALONE, round=round))
    restore = Restore(tier=Tier.CHECKPOINT, owner=owner, step=step)
    return open_together(storage, group, round=round, restore=restore)


def commit(storage: LocalStorage, opening: Opening, step: int) -> None:
    manifest = Manifest(FORMAT, step, opening.number, None, 1, step, {})
    storage.make(committed_name(step))
    storage.write(manifest_path(committed_name(step)), [memoryview(encode(manifest))])


def test_nothing_committed_is_older_than_any_snapshot(storage: LocalStorage) -> None:
    assert enter(storage, "life", 1).newest is None


def test_a_checkpoint_of_this_life_has_the_number_of_its_round(storage: LocalStorage) -> None:
    commit(storage, enter(storage, "life", 3), 20)
    assert enter(storage, "life", 5).newest == (3, 20)


def test_a_checkpoint_of_an_earlier_life_is_older_than_any_snapshot_of_this_one(storage: LocalStorage) -> None:
    commit(storage, enter(storage, "earlier-life", 7), 20)
    newest = enter(storage, "life", 1).newest
    assert newest is not None
    assert newest < (1, 0)
    commit(storage, enter(storage, "life", 2), 30)
    assert enter(storage, "life", 3).newest == (2, 30)


def test_what_may_not_be_restored_is_not_the_newest(storage: LocalStorage) -> None:
    for step in (20, 30):
        commit(storage, enter(storage, "life", 1), step)
    assert enter(storage, "life", 2, step=25).newest == (1, 20)
