"""A socket is reached whatever the length of its path."""

import socket
from pathlib import Path

import pytest

from holdfast.wire.unixsocket import PATH_BYTES_MAX, reachable


@pytest.mark.parametrize("length", [PATH_BYTES_MAX - 1, PATH_BYTES_MAX, PATH_BYTES_MAX + 1, 4 * PATH_BYTES_MAX])
def test_a_socket_is_bound_and_found(tmp_path: Path, length: int) -> None:
    folder = tmp_path
    while len(str(folder)) < length - 110:
        folder /= "f" * 100
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ("s" * (length - len(str(folder)) - 1))
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as caller:
        with reachable(path) as address:
            listener.bind(address)
        listener.listen()
        with reachable(path) as address:
            caller.connect(address)
    assert len(str(path)) == length
    assert path.is_socket()


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), reachable(tmp_path / ("f" * 200) / "socket"):
        raise AssertionError("reached")
