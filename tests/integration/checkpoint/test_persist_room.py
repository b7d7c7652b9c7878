"""Disks that are too small, and two rounds that want the same one."""

import errno
import logging
import os
import re
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from checkpoint_solo import Solo, committed
from patience import patient
from recorder import Recorder

from holdfast.api.errors import Fenced
from holdfast.checkpoint.format.manifest import FileRecord
from holdfast.checkpoint.storage.local import LocalStorage


class SmallDisk(LocalStorage):
    """Has room for `capacity_bytes` in all. One that is boastful says that there is more."""

    is_boastful = False

    def __init__(self, root: Path, capacity_bytes: int) -> None:
        super().__init__(root)
        self._folder = root
        self.capacity_bytes = capacity_bytes

    def free_bytes(self) -> int:
        return 1 << 60 if self.is_boastful else max(self.capacity_bytes - used_bytes(self._folder), 0)

    def write(self, name: str, parts: Sequence[memoryview]) -> FileRecord:
        record = super().write(name, parts)
        if used_bytes(self._folder) > self.capacity_bytes:
            raise OSError(errno.ENOSPC, "No space left on device", name)
        return record


def used_bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three checkpoints."""
    Solo(tmp_path / "root", round=1).train(until=3)
    return tmp_path / "root"


def test_a_save_that_does_not_fit_first_deletes_what_may_go(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = SmallDisk(root, used_bytes(root) + 5000)
    solo = Solo(root, round=2, keep=1, storage=disk).train(until=4)
    assert [step for step, _, _ in solo.run.commits] == [4]
    assert committed(root) == ["step-00000004"]
    assert not caplog.records


def test_a_save_that_does_not_fit_is_not_begun_and_says_what_it_lacks(
    root: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = committed(root)
    disk = SmallDisk(root, used_bytes(root) + 5000)
    solo = Solo(root, round=2, storage=disk)
    recorder = Recorder(root).watch(monkeypatch)
    with caplog.at_level(logging.WARNING), pytest.raises(Exception, match="3 checkpoints in a row"):
        solo.train(until=9)
    (said,) = set(re.findall(r"the disk is full at .* \((\d+) bytes needed, (\d+) free\)", caplog.text))
    assert int(said[1]) <= 5000 < int(said[0])
    assert not [call for call in recorder.calls if call.kind == "make" and ".tmp-" in call.name]
    assert committed(root) == before


def test_a_disk_that_is_full_though_it_said_otherwise_costs_one_save_and_no_room(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = SmallDisk(root, used_bytes(root) + 5000)
    disk.is_boastful = True
    solo = Solo(root, round=2, storage=disk)
    with pytest.raises(Exception, match="the disk is full at"):
        solo.train(until=9)
    assert committed(root) == [f"step-{step:08d}" for step in (1, 2, 3)]
    disk.capacity_bytes *= 3
    assert Solo(root, round=3, storage=disk).train(until=4).run.commits[0][0] == 4


def test_of_two_rounds_that_save_at_once_the_newer_has_its_way(root: Path) -> None:
    older, newer = Solo(root, round=2), Solo(root, round=3, every_steps=2)
    stopped: list[Exception] = []
    is_open = threading.Event()

    def go_on() -> None:
        try:
            for step in range(4, 90):
                older.train(until=step)
                is_open.set()
        except Fenced as error:
            stopped.append(error)

    straggler = threading.Thread(target=go_on)
    straggler.start()
    assert is_open.wait(patient(30))
    newer.train(until=89)
    straggler.join(patient(60))
    if len(older.steps) < 86:
        assert stopped, "the older round found the fence"
    last = Solo(root, round=4, every_steps=None).train(until=0)
    assert last.run.restores[0][:2] == (89, ())
    assert last.weights == newer.weights


def test_a_round_that_was_overtaken_replaces_nothing(root: Path) -> None:
    older = Solo(root, round=2).train(until=4)
    newer = Solo(root, round=3).train(until=5)
    with pytest.raises(Fenced, match="round 3 has entered"):
        older.train(until=5)
    assert committed(root) == [f"step-{step:08d}" for step in (3, 4, 5)]
    last = Solo(root, round=4, every_steps=None).train(until=0)
    assert (last.run.restores[0][:2], last.weights) == ((5, ()), newer.weights)


@pytest.mark.parametrize("more", [1, 10**6])
def test_a_folder_goes_although_somebody_still_writes_there(
    more: int, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = LocalStorage(root)
    storage.make("step-00000005.tmp-2-aa")
    rmdir, written = os.rmdir, []

    def late(path: str, *, dir_fd: int | None = None) -> None:
        if len(written) < more:
            written.append(Path(path) / "late")
            written[-1].touch()
        rmdir(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", late)
    if more == 1:
        storage.remove("step-00000005.tmp-2-aa")
        assert "step-00000005.tmp-2-aa" not in storage.names()
    else:
        with pytest.raises(OSError, match="not empty"):
            storage.remove("step-00000005.tmp-2-aa")
