"""What a launcher learns of its script's imports, keeps, and gives a warm parent to import."""

import os
from pathlib import Path

import pytest

from holdfast.agent.launch.child import apply, changed
from holdfast.agent.launch.forking import EntrypointKind
from holdfast.agent.launch.importlog import ImportLogs, log_file, names_in
from holdfast.agent.launch.learned import LearnedImports
from holdfast.agent.launch.preload import (
    PreloadList,
    leave_what_killed,
    read_list,
    single_threaded,
    stamp_of,
    trying_file,
    write_list,
)
from holdfast.agent.launch.settings import Entrypoint, preload_of
from holdfast.agent.launch.spawned import SpawnCall, Spawns, note_file
from holdfast.agent.launch.warm_parent import quiet, season
from holdfast.api.errors import InvalidInput


def learned(folder: Path, *preload: str, text: str = "import torch\n") -> LearnedImports:
    script = folder / "train.py"
    script.write_text(text)
    entrypoint = Entrypoint(EntrypointKind.SCRIPT, (str(script),))
    return LearnedImports(preload, entrypoint, {"HOLDFAST_CACHE": str(folder / "cache")}, folder)


def test_modules_go_by_their_package_in_the_order_of_their_import() -> None:
    wanted = PreloadList(("b.x", "a", "b", "a.y", "__main__", "not a name", "b.x"), {"c": "why"})
    assert wanted.learning(("c.z", "a")).units() == {"b": ("b.x", "b"), "a": ("a", "a.y")}


def test_what_is_learned_is_kept_for_the_same_script_of_the_same_content(tmp_path: Path) -> None:
    first = learned(tmp_path, "learned")
    assert first.learn(("pytest", "os", "torch.nn", "beside_the_script", "pytest.x")), "there is something new"
    assert first.wanted.modules == ("pytest", "pytest.x"), "installed, and not what every parent has"
    assert not first.learn(("pytest.y",)), "of a package that is known: no reason for another parent"
    assert learned(tmp_path, "learned").wanted.modules == ("pytest", "pytest.x", "pytest.y")
    assert learned(tmp_path, "learned", text="import torch  # edited\n").wanted == PreloadList()


def test_what_was_left_is_left_by_the_next_launcher_too(tmp_path: Path) -> None:
    first = learned(tmp_path, "learned")
    first.learn(("pytest",))
    first.leave(first.wanted.leaving("pytest", "it starts a process"))
    assert learned(tmp_path, "learned").wanted.units() == {}


def test_what_had_to_be_left_where_other_threads_were_kept_away_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.agent.launch.learned.SINGLE_THREADED", {"OMP_NUM_THREADS": "1"})
    before = learned(tmp_path, "learned")
    before.learn(("pytest",))
    before.leave(before.wanted.leaving("pytest", "it leaves 1 threads running"))
    monkeypatch.undo()
    assert learned(tmp_path, "learned").wanted == PreloadList()


def test_libraries_start_no_threads_in_a_parent_and_keep_what_else_they_were_told() -> None:
    user = {"PATH": "/bin", "OMP_NUM_THREADS": "8", "JE_ARROW_MALLOC_CONF": "dirty_decay_ms:0"}
    assert single_threaded({}) == {
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "JE_ARROW_MALLOC_CONF": "background_thread:false",
    }
    assert single_threaded(user) == {
        "PATH": "/bin",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "JE_ARROW_MALLOC_CONF": "dirty_decay_ms:0,background_thread:false",
    }


def test_what_the_script_sets_is_kept_for_the_next_parent_and_makes_none_by_itself(tmp_path: Path) -> None:
    first = learned(tmp_path, "learned")
    assert first.learn(("pytest",), ("HF_HOME",))
    first.leave(first.wanted)
    assert not first.learn(("pytest",), ("HF_HOME", "SET_LATER"))
    assert first.wanted.proven
    assert first.wanted.changed == ("HF_HOME", "SET_LATER")
    assert learned(tmp_path, "learned").wanted == first.wanted


def test_a_list_is_proven_once_a_parent_has_worked_through_its_packages(tmp_path: Path) -> None:
    first = learned(tmp_path, "learned")
    first.learn(("pytest",))
    worked = first.wanted
    first.learn(("pytest.y",))
    first.leave(worked)
    assert learned(tmp_path, "learned").wanted.proven
    assert first.learn(("hypothesis",))
    assert not learned(tmp_path, "learned").wanted.proven


def test_a_job_names_what_is_imported_and_whether_anything_is_learned(tmp_path: Path) -> None:
    named = learned(tmp_path, "transformers", "datasets")
    assert (named.wanted.modules, named.learns) == (("transformers", "datasets"), False)
    both = learned(tmp_path, "transformers", "learned")
    assert (both.wanted.modules, both.learns) == (("transformers",), True)
    assert learned(tmp_path).wanted == PreloadList()


def test_where_the_users_cache_cannot_be_written_the_run_directory_serves(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    entrypoint = Entrypoint(EntrypointKind.MODULE, ("train",))
    unwritable = {"HOLDFAST_CACHE": str(tmp_path / "file")}
    LearnedImports(("learned",), entrypoint, unwritable, tmp_path).learn(("pytest",))
    assert LearnedImports(("learned",), entrypoint, unwritable, tmp_path).wanted.modules == ("pytest",)


def test_a_program_of_its_own_is_not_learned_from(tmp_path: Path) -> None:
    entrypoint = Entrypoint(EntrypointKind.PROGRAM, ("sh",))
    assert not LearnedImports(("learned",), entrypoint, {}, tmp_path).learns


def test_what_a_parent_died_of_is_left_by_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    write_list(path, PreloadList(("a", "b")))
    leave_what_killed(path)
    assert read_list(path).left == {}
    trying_file(path).write_text("a")
    leave_what_killed(path)
    assert read_list(path).units() == {"b": ("b",)}
    assert not trying_file(path).exists()


def test_a_list_that_cannot_be_read_is_empty(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_bytes(b"{")
    assert read_list(tmp_path / "list.json") == read_list(tmp_path / "none.json") == PreloadList()


def test_a_stamp_changes_with_the_file_and_with_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "package" / "__init__.py"
    file.parent.mkdir()
    file.write_text("VERSION = 1\n")
    before = stamp_of([str(file)])
    assert stamp_of([str(file)]) == before
    os.utime(file, ns=(1, 1))
    other = stamp_of([str(file)])
    file.unlink()
    assert len({before, other, stamp_of([str(file)])}) == 3


def test_what_an_import_changed_is_changed_in_a_worker_that_starts_from_the_same() -> None:
    changes = changed({"A": "1", "B": "1", "C": "1"}, {"A": "2", "C": "1", "D": "4"})
    assert changes == {"A": ("1", "2"), "B": ("1", None), "D": (None, "4")}
    same = {"A": "1", "B": "1"}
    apply(changes, same)
    assert same == {"A": "2", "D": "4"}
    own = {"A": "own", "D": "own"}
    apply(changes, own)
    assert own == {"A": "own", "D": "own"}


def test_a_log_is_read_once_its_worker_trains_and_imports_nothing_more(tmp_path: Path) -> None:
    told: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
    logs = ImportLogs(tmp_path, lambda names, changed: told.append((tuple(names), tuple(changed))))
    log_file(tmp_path, 7).write_text("a\nHF_HOME=\na.b\n../x\na\n=\n")
    logs.watch(7)
    for _ in range(10):
        logs.look()
    assert told == [], "it may still be importing"
    logs.trains(7)
    for _ in range(10):
        logs.look()
    assert told == [(("a", "a.b"), ("HF_HOME",))], "once"
    logs.ended(7)
    assert told == [(("a", "a.b"), ("HF_HOME",))] * 2, "and at its end"
    assert names_in(log_file(tmp_path, 7)) == ()


def test_processes_that_a_script_starts_are_told_of_when_the_call_has_lasted(tmp_path: Path) -> None:
    told: list[tuple[int, SpawnCall]] = []
    now = [0.0]
    spawns = Spawns(tmp_path, lambda pid, call: told.append((pid, call)), clock=lambda: now[0])
    for pid in (7, 8):
        note_file(tmp_path, pid).write_text('{"place":"train.py:3 in main","processes":4}')
        spawns.watch(pid)
    spawns.forget(8)  # it speaks for itself
    now[0] = note_file(tmp_path, 7).stat().st_mtime + 59.0
    spawns.look()
    assert told == []
    now[0] += 2.0
    spawns.look()
    spawns.look()
    assert told == [(7, SpawnCall("train.py:3 in main", 4))]
    spawns.ended(7)
    assert not note_file(tmp_path, 7).exists()


@pytest.mark.parametrize(("text", "names"), [("", ()), ("learned", ("learned",)), ("a.b, c", ("a.b", "c"))])
def test_the_flag_takes_names_of_modules(text: str, names: tuple[str, ...]) -> None:
    assert preload_of(text) == names


def test_the_flag_refuses_what_is_no_module() -> None:
    with pytest.raises(InvalidInput, match="--preload: 'a-b'"):
        preload_of("a-b")


def test_what_packages_print_without_end_is_lost(capfd: pytest.CaptureFixture[str]) -> None:
    with quiet():
        os.write(1, b"a flood")
        os.write(2, b"of words")
    os.write(1, b"after it")
    assert capfd.readouterr() == ("after it", "")


def test_a_package_that_the_job_names_and_that_is_not_there_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_list(tmp_path / "list.json", PreloadList(("trnasformers",)))
    assert season(tmp_path / "list.json", {}) == 0
    assert "package=trnasformers because=it is not installed" in caplog.text
