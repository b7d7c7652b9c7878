"""What holds for checkpoints wherever they are kept."""

import random
import threading
import time
from collections.abc import Callable

import pytest
from patience import patient

from holdfast.api.errors import Fenced
from holdfast.checkpoint.commit.discovery import discover
from holdfast.checkpoint.commit.retention import Need, Retention
from holdfast.checkpoint.commit.storage import Entered, Storage
from holdfast.checkpoint.format import manifest
from holdfast.checkpoint.format.manifest import BLOCK_BYTES, FORMAT, Manifest

OpenStorage = Callable[[], Storage]


def save(storage: Storage, step: int, *, round: int, token: str = "aa", attempt: int = 1) -> str:
    """A folder with a whole checkpoint that is not published."""
    folder = storage.commits.folder(step, round=round, token=token, attempt=attempt)
    storage.make(folder)
    record = storage.write(f"{folder}/__0_0.distcp", [memoryview(f"state {step} of {token}".encode())])
    document = manifest.encode(
        Manifest(
            format=FORMAT,
            step=step,
            round=round,
            parent=None,
            world_size=1,
            batches=step,
            files={"__0_0.distcp": record},
        )
    )
    storage.write(f"{folder}/{manifest.FILE_NAME}", [memoryview(document)])
    storage.sync(folder)
    return folder


def commit(storage: Storage, step: int, *, round: int, token: str = "aa", attempt: int = 1) -> str:
    folder = save(storage, step, round=round, token=token, attempt=attempt)
    return storage.commits.publish(folder, step=step, round=round)


def steps(storage: Storage) -> list[int]:
    """The steps of what a restore would find."""
    found, unreadable = discover(storage)
    assert not unreadable
    return sorted(each.manifest.step for each in found)


def state(storage: Storage, name: str) -> bytes:
    return storage.read(f"{name}/__0_0.distcp", 0, 1000)


def test_a_file_is_read_back_as_it_was_written(storage: Storage) -> None:
    storage.make("folder")
    content = bytes(range(256)) * 100_000
    record = storage.write("folder/file", [memoryview(content[:10]), memoryview(b""), memoryview(content[10:])])
    assert record == manifest.record_of([memoryview(content)])
    assert storage.size_bytes("folder/file") == len(content)
    assert storage.read("folder/file", 0, len(content)) == content
    assert storage.read("folder/file", 300, 5) == content[300:305]
    assert storage.read("folder/file", len(content) - 3, 100) == content[-3:]
    assert storage.read("folder/file", len(content) + 3, 100) == b""
    assert storage.names("folder") == ["file"]


def test_a_file_is_read_into_memory_in_any_order_whatever_was_expected(storage: Storage) -> None:
    storage.make("folder")
    content = random.Random(1).randbytes(2 * BLOCK_BYTES + 1000)
    storage.write("folder/file", [memoryview(content)])
    file = storage.open("folder/file")
    file.expect(0, 5 * BLOCK_BYTES)
    for offset, length in ((2 * BLOCK_BYTES, BLOCK_BYTES), (0, BLOCK_BYTES), (0, BLOCK_BYTES), (5, 7), (10**9, 4)):
        memory = bytearray(length)
        count = file.read_into(offset, memoryview(memory))
        assert bytes(memory[:count]) == content[offset : offset + length]
    file.close()


def test_a_file_that_is_not_there_is_not_found(storage: Storage) -> None:
    storage.make("folder")
    with pytest.raises(FileNotFoundError):
        storage.open("folder/file").read_into(0, memoryview(bytearray(4)))


def test_when_something_was_stored_is_known(storage: Storage) -> None:
    storage.make("folder")
    before = time.time()
    storage.write("folder/file", [memoryview(b"state")])
    assert before - 2 < storage.modified_at("folder/file") < time.time() + 2  # Some stores count whole seconds.


def test_a_file_that_is_written_again_is_replaced(storage: Storage) -> None:
    storage.make("folder")
    storage.write("folder/file", [memoryview(b"longer than the next")])
    storage.write("folder/file", [memoryview(b"short")])
    assert storage.read("folder/file", 0, 100) == b"short"


def test_an_empty_file_is_a_file(storage: Storage) -> None:
    storage.make("folder")
    storage.write("folder/file", [])
    assert storage.size_bytes("folder/file") == 0


def test_what_is_not_there_is_said_to_be_missing(storage: Storage) -> None:
    with pytest.raises(FileNotFoundError):
        storage.size_bytes("nothing/here")
    with pytest.raises(FileNotFoundError):
        storage.read("nothing/here", 0, 1)
    assert storage.names("nothing") == []
    storage.remove("nothing")


def test_only_what_was_published_is_a_checkpoint(open_storage: OpenStorage) -> None:
    storage = open_storage()
    assert storage.commits.enter(owner="job", round=1) == 1
    name = commit(storage, 3, round=1)
    save(storage, 4, round=1)
    assert steps(open_storage()) == [3]
    assert state(open_storage(), name) == b"state 3 of aa"


def test_what_a_dead_round_has_left_goes_and_what_it_has_committed_stays(open_storage: OpenStorage) -> None:
    dead = open_storage()
    dead.commits.enter(owner="job", round=1)
    commit(dead, 3, round=1)
    folder = save(dead, 4, round=1, attempt=2)
    living = open_storage()
    living.commits.enter(owner="job", round=2)
    assert living.names(folder) == []
    assert steps(living) == [3]


def test_a_round_that_was_left_behind_commits_and_deletes_nothing_more(open_storage: OpenStorage) -> None:
    old = open_storage()
    old.commits.enter(owner="job", round=1)
    commit(old, 3, round=1)
    folder = save(old, 4, round=1)
    open_storage().commits.enter(owner="job", round=2)
    with pytest.raises(Fenced, match="round 2 has entered"):
        old.commits.publish(folder, step=4, round=1)
    with pytest.raises(Fenced):
        old.commits.retire(Retention(1), round=1, token="aa")
    with pytest.raises(Fenced):
        old.commits.enter(owner="job", round=1)
    assert steps(old) == [3]


def test_another_life_of_the_job_goes_above_every_round_before(open_storage: OpenStorage) -> None:
    assert open_storage().commits.enter(owner="first", round=7) == 7
    storage = open_storage()
    number = storage.commits.enter(owner="second", round=1)
    assert number == 8
    commit(storage, 5, round=number)
    with pytest.raises(Fenced, match="second has taken"):
        open_storage().commits.enter(owner="first", round=8)


def test_a_step_that_is_committed_again_takes_the_place(open_storage: OpenStorage) -> None:
    storage = open_storage()
    storage.commits.enter(owner="job", round=1)
    commit(storage, 3, round=1)
    newer = open_storage()
    newer.commits.enter(owner="job", round=2)
    name = commit(newer, 3, round=2, token="bb")
    newer.commits.retire(Retention(3), round=2, token="bb")
    assert steps(newer) == [3]
    assert state(newer, name) == b"state 3 of bb"


def test_only_so_many_are_kept_and_none_of_the_others_is_left(open_storage: OpenStorage) -> None:
    storage = open_storage()
    storage.commits.enter(owner="job", round=1)
    names = [commit(storage, step, round=1, attempt=step) for step in (1, 2, 3, 4)]
    storage.commits.retire(Retention(2), round=1, token="aa")
    assert steps(open_storage()) == [3, 4]
    assert [open_storage().names(name) for name in names[:2]] == [[], []]


def test_what_a_job_needs_is_known_to_whoever_deletes_by_hand_until_it_needs_something_else(
    open_storage: OpenStorage,
) -> None:
    storage = open_storage()
    assert open_storage().commits.entered() == Entered(0, Need())
    storage.commits.enter(owner="job", round=1)
    for need in (Need(100, 400), Need(100, 500), Need()):
        storage.commits.retire(Retention(2), round=1, token="aa", need=need)
        assert open_storage().commits.entered() == Entered(1, need)
        open_storage().commits.retire(Retention(1, 7, 7), round=1, token="by-hand")
        assert open_storage().commits.entered() == Entered(1, need)
    storage.commits.retire(Retention(2), round=1, token="aa", need=Need(100, 600))
    open_storage().commits.enter(owner="job", round=2)
    with pytest.raises(Fenced):
        storage.commits.retire(Retention(2), round=1, token="aa", need=Need())
    assert open_storage().commits.entered() == Entered(2, Need(100, 600))


def test_a_failed_save_of_this_process_goes_and_one_of_another_process_stays(open_storage: OpenStorage) -> None:
    storage = open_storage()
    storage.commits.enter(owner="job", round=1)
    failed = save(storage, 3, round=1, token="aa")
    other = save(storage, 3, round=1, token="bb")
    storage.commits.retire(Retention(2), round=1, token="aa")
    assert storage.names(failed) == []
    assert storage.names(other) != []


def test_of_many_that_commit_and_enter_at_once_every_one_is_told_the_truth(open_storage: OpenStorage) -> None:
    """Whoever was told that its commit stands finds it; whoever was fenced off does not."""
    open_storage().commits.enter(owner="job", round=0)
    told: dict[int, bool] = {}

    def run(round: int) -> None:
        mine = open_storage()
        try:
            mine.commits.enter(owner="job", round=round)
            commit(mine, 100 + round, round=round, token=f"t{round}")
            told[round] = True
        except (Fenced, OSError):  # Its files may have been swept away while it wrote them.
            told[round] = False

    threads = [threading.Thread(target=run, args=(round,)) for round in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patient(30.0))
    assert sorted(told) == [1, 2, 3, 4, 5, 6]
    assert told[6], "nobody is above the highest round"
    assert steps(open_storage()) == [100 + round for round in sorted(told) if told[round]]
