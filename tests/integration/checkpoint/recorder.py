"""What a process does to files, call by call: written down, and hindered where a test wants it.

A `Recorder` stands in for `os` in the modules that write checkpoints. Everything happens for real.
"""

import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.storage import filewriter, local


@dataclass(frozen=True)
class Call:
    """One change, or wish for one to last. Names are relative to the root, which is "" and lies in ".."."""

    kind: str
    """make, create, write, cut, sync, rename, unlink, rmdir; said: of the test itself"""
    name: str
    target: str = ""
    offset: int = 0
    content: bytes = field(default=b"", repr=False)
    size_bytes: int = 0


Hindrance = Callable[[Call], object]
"""Called before a call, from the thread that makes it; what it raises, the call raises."""


class Recorder:
    """Stands in for `os` and `shutil`."""

    def __init__(self, root: Path, hindrance: Hindrance = lambda call: None) -> None:
        self.calls: list[Call] = []
        self._root = root
        self._hindrance = hindrance
        self._names: dict[int, str] = {}
        self._lock = threading.Lock()

    def watch(self, patch: pytest.MonkeyPatch) -> "Recorder":
        """From now on, until the test ends."""
        patch.setattr(local, "os", self)
        patch.setattr(local, "shutil", self)
        patch.setattr(filewriter, "os", self)
        return self

    def say(self, words: str) -> None:
        self._note(Call("said", words))

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name) if hasattr(os, name) else getattr(shutil, name)

    def makedirs(self, path: Path, *, exist_ok: bool) -> None:
        missing = [each for each in (path, *path.parents) if not each.exists()]
        for each in reversed(missing):
            self._note(Call("make", self._name(each)))
        os.makedirs(path, exist_ok=exist_ok)

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT and (flags & os.O_TRUNC or not path.exists()):
            self._note(Call("create", self._name(path)))
        descriptor = os.open(path, flags, mode)
        self._names[descriptor] = self._name(path)
        return descriptor

    def pwrite(self, descriptor: int, content: memoryview, offset: int) -> int:
        self._note(Call("write", self._names[descriptor], offset=offset, content=bytes(content)))
        return os.pwrite(descriptor, content, offset)

    def ftruncate(self, descriptor: int, size_bytes: int) -> None:
        self._note(Call("cut", self._names[descriptor], size_bytes=size_bytes))
        os.ftruncate(descriptor, size_bytes)

    def fsync(self, descriptor: int) -> None:
        self._note(Call("sync", self._names[descriptor]))

    def rename(self, source: Path, target: Path) -> None:
        self._note(Call("rename", self._name(source), target=self._name(target)))
        os.rename(source, target)

    def rmtree(self, folder: Path) -> None:
        for name in os.listdir(folder):
            self._note(Call("unlink", self._name(folder / name)))
            os.unlink(folder / name)
        self._note(Call("rmdir", self._name(folder)))
        os.rmdir(folder)

    def _note(self, call: Call) -> None:
        self._hindrance(call)
        with self._lock:
            self.calls.append(call)

    def _name(self, path: Path) -> str:
        name = os.path.relpath(path, self._root)
        return "" if name == "." else name
