"""The kinds of storage a checkpoint can be in."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from object_server import BUCKET, ObjectServer, environment

from holdfast.checkpoint.commit.storage import Storage
from holdfast.checkpoint.storage.address import storage_at


@pytest.fixture(scope="session")
def object_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    server = ObjectServer(tmp_path_factory.mktemp("objects"))
    yield server
    server.stop()


@pytest.fixture(params=["file", "s3", "memory"])
def open_storage(
    request: pytest.FixtureRequest, object_server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], Storage]:
    """Opens the storage of one test, as another process would."""
    for name, value in environment(object_server.port).items():
        monkeypatch.setenv(name, value)
    uris = {
        "file": tmp_path.as_uri(),
        "s3": f"s3://{BUCKET}/{tmp_path.name}",
        "memory": f"memory://{tmp_path.name}",
    }
    return lambda: storage_at(uris[request.param])


@pytest.fixture
def storage(open_storage: Callable[[], Storage]) -> Storage:
    return open_storage()
