"""A store that has lost what it knew is not taken for a new one."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.api.errors import Damaged
from holdfast.api.event import MemberLeft
from holdfast.watchdog.store.sqlite import TABLES, SqliteStore

JOB = "research/gpt"


def write(path: Path, *, count: int = 3) -> int:
    """One life of a watchdog; its last line."""
    store = SqliteStore(path)
    fence = store.claim()
    last = store.last(JOB)
    for number in range(count):
        store.append(JOB, [MemberLeft(f"m{number}", "done")], at=1.0, after=last + number, fence=fence)
        store.harden(fence=fence)
    store.close()
    return last + count


def killed_with_a_log(path: Path) -> None:
    """Leave the store as a killed process does: what was written last is only in the log beside it."""
    write(path)
    store = SqliteStore(path)
    fence = store.claim()
    store.append(JOB, [MemberLeft("late", "done")], at=1.0, after=store.last(JOB), fence=fence)
    store.harden(fence=fence)
    kept = path.with_name("kept")
    kept.mkdir()
    for name in os.listdir(path.parent):
        if name != "kept":
            shutil.copy(path.parent / name, kept / name)
    store.close()
    for name in os.listdir(kept):
        os.replace(kept / name, path.parent / name)
    path.with_name(path.name + "-shm").unlink(missing_ok=True)


def without_log(path: Path) -> None:
    path.with_name(path.name + "-wal").unlink()


def without(table: str) -> Callable[[Path], None]:
    def lose(path: Path) -> None:
        with sqlite3.connect(path) as connection:
            connection.execute(f"DROP TABLE {table}")
        connection.close()

    return lose


def cut_to_nothing(path: Path) -> None:
    without_log(path)
    os.truncate(path, 0)


def deleted(path: Path) -> None:
    without_log(path)
    path.unlink()


@pytest.mark.parametrize("lose", [without_log, *map(without, TABLES), cut_to_nothing, deleted])
def test_a_store_that_lost_something_is_refused_again_and_again(
    tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    path = tmp_path / "watchdog.db"
    killed_with_a_log(path)
    lose(path)
    for _ in range(3):
        with pytest.raises(Damaged, match=r"delete it together with watchdog\.db\.life to begin anew"):
            SqliteStore(path)


def test_the_same_store_untouched_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "watchdog.db"
    killed_with_a_log(path)
    assert write(path) == 7


def test_a_store_from_before_a_table_was_added_gets_it(tmp_path: Path) -> None:
    path = tmp_path / "watchdog.db"
    write(path)
    for younger in TABLES[4:]:
        without(younger)(path)
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM meta WHERE name = 'tables'")
    connection.close()
    assert write(path) == 6


def test_to_begin_anew_on_purpose_both_are_deleted(tmp_path: Path) -> None:
    path = tmp_path / "watchdog.db"
    write(path)
    path.unlink()
    path.with_name("watchdog.db.life").unlink()
    assert write(path) == 3


def test_a_store_from_before_there_were_witnesses_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "watchdog.db"
    write(path)
    path.with_name("watchdog.db.life").unlink()
    assert write(path) == 6


@pytest.mark.parametrize("content", [b"", b"\xff" * 42, b"not a witness\n"])
def test_a_witness_that_says_nothing_stops_nobody(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "watchdog.db"
    write(path)
    path.with_name("watchdog.db.life").write_bytes(content)
    assert write(path) == 6
