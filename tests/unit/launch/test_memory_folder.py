"""Whose memory it is, how long it stays, and who gives it back."""

import fcntl
import os
import shutil
from pathlib import Path

import pytest

from holdfast.agent.launch.memoryfolder import ABANDONED_S, MemoryFolder, folder_of
from holdfast.api.errors import Unavailable


def folder(root: Path, member: str = "a") -> Path:
    return folder_of(root, job="default/j", member=member, run_dir=Path("/run"))


def abandon(path: Path, *, for_s: float) -> None:
    """Make the folder look as if its launcher had been killed then."""
    lock = path / "launcher.lock"
    then = lock.stat().st_mtime - for_s
    os.utime(lock, (then, then))


def test_a_launcher_that_is_started_again_finds_what_it_had(tmp_path: Path) -> None:
    first = MemoryFolder.claim(folder(tmp_path))
    (first.path / "slot-000.0.own").write_text("a snapshot")
    first.leave()
    second = MemoryFolder.claim(folder(tmp_path))
    assert (second.path / "slot-000.0.own").read_text() == "a snapshot"
    assert folder(tmp_path) != folder(tmp_path, "b")


def test_a_folder_is_one_launchers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.agent.launch.memoryfolder._LOCK_PATIENCE_S", 0.0)
    held = MemoryFolder.claim(folder(tmp_path))
    with pytest.raises(Unavailable, match="another launcher uses"):
        MemoryFolder.claim(folder(tmp_path))
    held.leave()
    MemoryFolder.claim(folder(tmp_path)).remove()
    assert not folder(tmp_path).exists()


def test_nobody_else_can_read_it_and_a_strangers_is_not_taken(tmp_path: Path) -> None:
    assert MemoryFolder.claim(folder(tmp_path)).path.stat().st_mode & 0o777 == 0o700
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder(tmp_path, "b").symlink_to(elsewhere)
    with pytest.raises(Unavailable, match="somebody else's"):
        MemoryFolder.claim(folder(tmp_path, "b"))


def test_where_no_folder_can_be_made_the_reason_is_told(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="No such file or directory"):
        MemoryFolder.claim(folder(tmp_path / "missing"))


def test_clearing_leaves_the_folder_its_launchers(tmp_path: Path) -> None:
    held = MemoryFolder.claim(folder(tmp_path))
    (held.path / "slot-000.0.own").touch()
    held.clear()
    assert [each.name for each in held.path.iterdir()] == ["launcher.lock"]


def test_a_folder_that_somebody_removed_is_clear(tmp_path: Path) -> None:
    held = MemoryFolder.claim(folder(tmp_path))
    shutil.rmtree(held.path)
    held.clear()
    held.remove()


def test_what_nobody_came_back_for_is_swept_and_nothing_else(tmp_path: Path) -> None:
    held = [MemoryFolder.claim(folder(tmp_path, member)) for member in ("lost", "late", "alive", "self")]
    lost, late, alive, own = held
    lost.leave()
    late.leave()
    strange = tmp_path / "somebody-elses"
    strange.mkdir()
    for each, for_s in ((lost, ABANDONED_S + 1), (late, ABANDONED_S / 2), (alive, ABANDONED_S + 1)):
        abandon(each.path, for_s=for_s)
    assert own.sweep() == (lost.path,)
    assert not lost.path.exists()
    assert all(path.exists() for path in (late.path, alive.path, own.path, strange))


def test_a_launcher_that_came_back_while_another_swept_keeps_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening the lock and taking it: a third one has swept it, and its launcher has made it anew."""
    lost, own = (MemoryFolder.claim(folder(tmp_path, member)) for member in ("lost", "self"))
    lost.leave()
    abandon(lost.path, for_s=ABANDONED_S + 1)
    real_flock, back = fcntl.flock, []

    def flock(descriptor: int, operation: int) -> None:
        if not back:
            back.append(lost.path)
            shutil.rmtree(lost.path)
            back.append(MemoryFolder.claim(lost.path))
        real_flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    assert own.sweep() == ()
    assert lost.path.exists()


def test_a_folder_that_another_sweeps_meanwhile_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, lost, own = (MemoryFolder.claim(folder(tmp_path, member)) for member in ("gone", "lost", "self"))
    for each in (gone, lost):
        each.leave()
        abandon(each.path, for_s=ABANDONED_S + 1)
    real_open = os.open

    def open_(path: Path, flags: int, mode: int = 0o777, **options: int) -> int:
        if path.parent == gone.path:
            shutil.rmtree(gone.path, ignore_errors=True)
        return real_open(path, flags, mode, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", open_)
        swept = own.sweep()
    assert swept == (lost.path,)
