"""Training that saves to an object store."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoint_solo import Solo
from object_server import BUCKET, ObjectServer, environment

from holdfast.checkpoint.commit.discovery import discover
from holdfast.checkpoint.storage.address import storage_at


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    server = ObjectServer(tmp_path / "objects")
    for name, value in environment(server.port).items():
        monkeypatch.setenv(name, value)
    yield server
    server.stop()


def solo(tmp_path: Path, uri: str = f"s3://{BUCKET}/jobs/lm") -> Solo:
    return Solo(tmp_path / "unused", storage=storage_at(uri), every_steps=2)


def test_training_resumes_bit_equal_from_an_object_store(server: ObjectServer, tmp_path: Path) -> None:
    undisturbed = Solo(tmp_path / "local", every_steps=2).train(9)
    solo(tmp_path).train(4)
    resumed = solo(tmp_path).train(9)
    assert resumed.steps == [5, 6, 7, 8, 9]
    assert resumed.weights == undisturbed.weights


def test_a_damaged_object_is_recognised_and_the_checkpoint_before_is_used(
    server: ObjectServer, tmp_path: Path
) -> None:
    first = solo(tmp_path).train(4)
    (newest,) = server.folder.glob("jobs/lm/step-00000004.*/__0_0.distcp")
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    resumed = solo(tmp_path).train(4)
    assert resumed.steps == [3, 4]
    assert resumed.weights == first.weights


def test_a_commit_is_reported_with_the_folder_it_is_in(server: ObjectServer, tmp_path: Path) -> None:
    trained = solo(tmp_path).train(2)
    ((_, uri),) = [each[:2] for each in trained.run.commits]
    assert uri.startswith(f"s3://{BUCKET}/jobs/lm/step-00000002.")
    assert (server.folder / "jobs/lm" / uri.rpartition("/")[2] / "manifest.json").exists()


def test_no_more_checkpoints_stay_than_are_kept(server: ObjectServer, tmp_path: Path) -> None:
    solo(tmp_path).train(12)
    found, unreadable = discover(storage_at(f"s3://{BUCKET}/jobs/lm"))
    assert sorted(each.manifest.step for each in found) == [8, 10, 12]
    assert not unreadable
    assert len(list(server.folder.glob("jobs/lm/step-*"))) == 3
