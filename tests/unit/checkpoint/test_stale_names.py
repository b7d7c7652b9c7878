"""A file that another machine wrote, in a file system that remembers for a while that it was not there."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.storage import local
from holdfast.checkpoint.storage.local import LocalStorage

LOOKS: dict[str, Callable[[LocalStorage, str], Any]] = {
    "read": lambda storage, name: storage.read(name, 1, 2),
    "opened": lambda storage, name: storage.open(name).close(),
    "its size": lambda storage, name: storage.size_bytes(name),
    "its time": lambda storage, name: storage.modified_at(name) > 0,
}
FOUND = {"read": b"bc", "opened": None, "its size": 3, "its time": True}


class Remembering:
    """Stands in for `os` and `open`: what was not there once is not, until its folder is listed."""

    def __init__(self) -> None:
        self.listed: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def listdir(self, folder: Path) -> list[str]:
        self.listed.add(str(folder))
        return os.listdir(folder)

    def look(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(path: Path, *rest: Any) -> Any:
            if str(Path(path).parent) not in self.listed:
                raise FileNotFoundError(2, "remembered", str(path))
            return call(path, *rest)

        return called


@pytest.mark.parametrize("how", LOOKS)
def test_a_file_that_was_not_there_is_looked_for_again_once_its_folder_was_listed(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "step-1").mkdir()
    (tmp_path / "step-1" / "manifest.json").write_bytes(b"abc")
    remembering: Any = Remembering()
    remembering.open, remembering.stat = remembering.look(os.open), remembering.look(os.stat)
    monkeypatch.setattr(local, "os", remembering)
    monkeypatch.setattr(local, "open", remembering.look(open), raising=False)
    storage = LocalStorage(tmp_path)
    assert LOOKS[how](storage, "step-1/manifest.json") == FOUND[how]
    for missing in ("step-1/other", "step-2/manifest.json"):
        with pytest.raises(FileNotFoundError):
            LOOKS[how](storage, missing)
