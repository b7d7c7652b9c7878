"""What becomes of saves when the store, or the line to it, does not do what it should."""

import random
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from faulty_line import Fault, FaultyLine
from object_server import BUCKET, ObjectServer, environment
from patience import patient
from test_storage import commit, save, steps

from holdfast.api.errors import Damaged, InvalidInput
from holdfast.checkpoint.commit.retention import Retention
from holdfast.checkpoint.format.manifest import BLOCK_BYTES
from holdfast.checkpoint.storage.address import storage_at
from holdfast.checkpoint.storage.cloud import CloudBucket
from holdfast.checkpoint.storage.fsspecbucket import FsspecBucket
from holdfast.checkpoint.storage.journal import JOURNAL, Head, Journal, entry_name
from holdfast.checkpoint.storage.objectstorage import ObjectStorage


@pytest.fixture
def line(object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyLine]:
    line = FaultyLine(object_server.port)
    for name, value in environment(line.port).items():
        monkeypatch.setenv(name, value)
    yield line
    line.close()


@pytest.fixture
def bucket(line: FaultyLine, tmp_path: Path) -> CloudBucket:
    return CloudBucket(f"s3://{BUCKET}/{tmp_path.name}", tries_again_max=2)


@pytest.fixture
def storage(bucket: CloudBucket) -> ObjectStorage:
    storage = ObjectStorage(bucket)
    storage.commits.enter(owner="job", round=1)
    return storage


@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.CUT, Fault.ANSWER_LOST])
def test_a_fault_that_passes_is_not_noticed(fault: Fault, line: FaultyLine, storage: ObjectStorage) -> None:
    line.fail(fault, "PUT", times=2)
    commit(storage, 3, round=1)
    assert line.failed == 2
    assert steps(storage) == [3]


@pytest.mark.parametrize("method", ["PUT", "GET", "HEAD"])
def test_a_line_that_falls_silent_is_given_up_and_tried_again(
    method: str, line: FaultyLine, tmp_path: Path
) -> None:
    bucket = CloudBucket(f"s3://{BUCKET}/{tmp_path.name}", answer_within=timedelta(seconds=patient(0.5)))
    storage = ObjectStorage(bucket)
    storage.commits.enter(owner="job", round=1)
    line.fail(Fault.SILENT, method, times=1)
    commit(storage, 3, round=1)
    assert steps(storage) == [3]
    assert line.failed == 1


def test_what_is_expected_is_fetched_all_at_once(tmp_path: Path) -> None:
    together = threading.Barrier(8, timeout=patient(30))

    class Meeting(FsspecBucket):
        def part(self, name: str, start: int, end: int) -> bytes:
            together.wait()
            return super().part(name, start, end)

    storage = ObjectStorage(Meeting(f"memory://{tmp_path.name}"))
    content = random.Random(1).randbytes(8 * BLOCK_BYTES - 5)
    storage.write("file", [memoryview(content)])
    file = storage.open("file")
    file.expect(0, len(content))
    memory = bytearray(BLOCK_BYTES)
    for number in range(8):
        count = file.read_into(number * BLOCK_BYTES, memoryview(memory))
        assert content[number * BLOCK_BYTES :][:BLOCK_BYTES] == memory[:count]


def test_an_object_that_is_cut_short_is_read_to_its_end(storage: ObjectStorage) -> None:
    storage.write("step-00000003.1-aa_1/file", [memoryview(bytes(BLOCK_BYTES + 10))])
    file = storage.open("step-00000003.1-aa_1/file")
    file.expect(0, 4 * BLOCK_BYTES)
    memory = memoryview(bytearray(BLOCK_BYTES))
    assert [file.read_into(number * BLOCK_BYTES, memory) for number in range(3)] == [BLOCK_BYTES, 10, 0]
    file.close()


@pytest.mark.parametrize("method", ["PUT", "POST"])
@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.CUT])
def test_an_upload_that_fails_in_any_part_fails_and_leaves_no_object(
    fault: Fault, method: str, line: FaultyLine, storage: ObjectStorage
) -> None:
    image = memoryview(bytes(40 << 20))
    line.fail(fault, method)
    with pytest.raises(OSError, match="S3"):
        storage.write("step-00000003.1-aa_1/__0_0.distcp", [image])
    line.heal()
    assert storage.names("step-00000003.1-aa_1") == []
    assert storage.write("step-00000003.1-aa_1/__0_0.distcp", [image]).size_bytes == image.nbytes
    assert storage.size_bytes("step-00000003.1-aa_1/__0_0.distcp") == image.nbytes


def test_a_commit_that_nobody_heard_of_is_not_taken_back(line: FaultyLine, storage: ObjectStorage) -> None:
    """The store has it, the answers were lost: the save counts as failed, its files may not go for that."""
    folder = save(storage, 3, round=1)
    line.fail(Fault.ANSWER_LOST, "PUT")
    with pytest.raises(OSError, match="S3"):
        storage.commits.publish(folder, step=3, round=1)
    line.heal()
    storage.remove(folder)
    storage.commits.retire(Retention(3), round=1, token="aa")
    assert steps(storage) == [3]
    assert commit(storage, 3, round=1, attempt=2) != folder
    assert steps(storage) == [3]


def test_a_commit_that_never_reached_the_store_is_cleared_away(line: FaultyLine, storage: ObjectStorage) -> None:
    folder = save(storage, 3, round=1)
    line.fail(Fault.ERROR, "PUT")
    with pytest.raises(OSError, match="S3"):
        storage.commits.publish(folder, step=3, round=1)
    line.heal()
    storage.remove(folder)
    assert storage.names(folder) != [], "it may still be on its way"
    storage.commits.retire(Retention(3), round=1, token="aa")
    assert storage.names(folder) == []
    assert steps(storage) == []


def test_a_store_that_cannot_delete_keeps_old_ones_and_loses_none(
    line: FaultyLine, storage: ObjectStorage
) -> None:
    names = [commit(storage, step, round=1, attempt=step) for step in (1, 2)]
    line.fail(Fault.ERROR, "POST")
    storage.commits.retire(Retention(1), round=1, token="aa")
    assert steps(storage) == [2]
    line.heal()
    storage.commits.retire(Retention(1), round=1, token="aa")
    assert storage.names(names[0]) == []
    assert steps(storage) == [2]


class Overwriting(FsspecBucket):
    """A store that takes the condition of a put for decoration, as some do."""

    def create(self, name: str, content: bytes) -> bool:
        self.put(name, [memoryview(content)])
        return True


def test_a_store_that_ignores_conditions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="does not honour conditional writes"):
        ObjectStorage(Overwriting(f"memory://{tmp_path.name}")).commits.enter(owner="job", round=1)


def test_a_writer_that_slept_while_the_journal_was_shortened_finds_out(tmp_path: Path) -> None:
    bucket = FsspecBucket(f"memory://{tmp_path.name}")
    journal = Journal(bucket)
    for number in range(1, 131):
        assert journal.append(number, Head())
    journal.trim()
    journal.trim()
    assert not journal.append(6, Head(committed=("step-00000001.1-aa_1",)))
    assert journal.read() == (130, journal.read()[1])
    assert entry_name(6) not in bucket.names(JOURNAL)
    assert len(bucket.names(JOURNAL)) == 100


def test_a_journal_that_nobody_can_read_stops_the_round(tmp_path: Path) -> None:
    bucket = FsspecBucket(f"memory://{tmp_path.name}")
    bucket.create(f"{JOURNAL}/{entry_name(1)}", b"not what was written")
    with pytest.raises(Damaged, match="000000000001"):
        ObjectStorage(bucket).commits.enter(owner="job", round=1)


@pytest.mark.parametrize(("uri", "fix"), [("gopher://hole/x", "Protocol not known"), ("s3://", "bucket/prefix")])
def test_a_uri_that_leads_nowhere_is_refused_with_what_to_do(uri: str, fix: str) -> None:
    with pytest.raises(InvalidInput, match=fix):
        storage_at(uri)
