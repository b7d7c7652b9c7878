"""How a run is started again: where its code is, its command, its environment, its ranks."""

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from holdfast.api.errors import InvalidInput
from holdfast.api.runmanifest import Code, RunManifest
from holdfast.cli.bisect.program import Program, program_of
from holdfast.trainer import sourcecode


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=someone", "-c", "user.email=someone@example.com")
    return subprocess.run(
        ["git", "-C", str(folder), *identity, *words], check=True, capture_output=True, text=True
    ).stdout


def hash_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def started(manifest: RunManifest, scratch: Path, **said: object) -> Program:
    given = {"directory": None, "command": (), "ranks": None, **said}
    return program_of("B", manifest, scratch=scratch, **given)  # type: ignore[arg-type]


def test_code_that_is_as_it_was_is_run_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("one\n")
    code = Code(directory=str(tmp_path), files={"train.py": hash_of("one\n")})
    settings = {
        "environment": {"NCCL_ALGO": "Ring", "NCCL_SOCKET_IFNAME": "eth7"},
        "topology": {"world_size": "2"},
    }
    found = started(RunManifest(1, command=("/no/python", "train.py"), code=code, settings=settings), tmp_path)
    assert (found.directory, found.command[1:], found.ranks) == (tmp_path, ("train.py",), 2)
    assert Path(found.command[0]).exists()
    assert found.environment["NCCL_ALGO"] == "Ring"
    assert "NCCL_SOCKET_IFNAME" not in found.environment


def test_a_change_beside_the_scripts_folder_is_a_change_of_the_code(tmp_path: Path) -> None:
    tree, scratch = tmp_path / "tree", tmp_path / "scratch"
    (tree / "scripts").mkdir(parents=True)
    scratch.mkdir()
    git(tree, "init", "-q")
    script, beside = tree / "scripts" / "train.py", tree / "act.py"
    script.write_text("one\n")
    beside.write_text("gelu\n")
    git(tree, "add", ".")
    git(tree, "commit", "-qm", "first")
    recorded = sourcecode.code_of(tree, script)
    manifest = RunManifest(1, command=("python3", str(script)), code=recorded)
    assert started(manifest, scratch).directory == tree
    beside.write_text("relu\n")
    git(tree, "commit", "-qam", "second")
    found = started(manifest, scratch).directory
    assert (found / "act.py").read_text() == "gelu\n"


def test_what_was_not_set_is_not_taken_from_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.setenv("HARMLESS", "1")
    found = started(RunManifest(1), tmp_path, directory=tmp_path, command=("true",)).environment
    assert "CUBLAS_WORKSPACE_CONFIG" not in found
    assert found["HARMLESS"] == "1"


def test_code_that_has_changed_since_is_laid_out_from_its_commit_and_diff(tmp_path: Path) -> None:
    tree, scratch = tmp_path / "tree", tmp_path / "scratch"
    tree.mkdir()
    scratch.mkdir()
    git(tree, "init", "-q")
    script = tree / "train.py"
    script.write_text("one\n")
    git(tree, "add", "train.py")
    git(tree, "commit", "-qm", "first")
    commit = git(tree, "rev-parse", "HEAD").strip()
    script.write_text("two\n")
    diff = git(tree, "diff", "--binary", "--full-index", "HEAD")
    script.write_text("three\n")
    code = Code(str(tree), str(tree), commit, diff, files={"train.py": hash_of("two\n")})
    found = started(RunManifest(1, command=("python3", str(script)), code=code), scratch)
    assert found.directory == scratch / "code-B"
    assert Path(found.command[1]).read_text() == "two\n"
    assert script.read_text() == "three\n"
    assert git(tree, "worktree", "list").count("\n") == 1


@pytest.mark.parametrize(
    ("manifest", "field"),
    [
        (RunManifest(1), "command of B"),
        (RunManifest(1, command=("python3", "t.py", "--token=<left out>")), "command of B"),
        (RunManifest(1, command=("python3", "t.py")), "code of B"),
        (RunManifest(1, command=("python3",), code=Code(commit="abc", left_out="cut")), "code of B"),
        (RunManifest(1, command=("python3",), code=Code(commit="abc", root="/nowhere")), "code of B"),
        (RunManifest(1, command=("python3",), code=Code(commit="--remote=x", root="/")), "code of B"),
        (RunManifest(1, command=("python3",), code=Code(commit="a" * 40, root="/nowhere")), "code of B"),
    ],
)
def test_what_the_manifest_does_not_tell_is_asked_for_by_name(
    manifest: RunManifest, field: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput) as refused:
        started(manifest, tmp_path)
    assert refused.value.problems[0].field == field


@pytest.mark.parametrize(
    ("below", "cwd", "words"),
    [
        ("", "", ("{was}/train.py", "--config={was}/small.yaml")),  # absolute paths
        ("", "", ("train.py", "{was}/small.yaml")),
        ("scripts", "", ("scripts/train.py",)),  # started above the folder of the script
        ("", "elsewhere", ("{was}/train.py",)),  # started beside it
    ],
    ids=["absolute", "relative", "below", "beside"],
)
def test_code_that_is_elsewhere_now_is_run_from_there(
    below: str, cwd: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    was, copy = tmp_path / "was", tmp_path / "copy"
    for folder, script in ((was, "of B\n"), (copy, "of A\n")):
        (folder / below).mkdir(parents=True)
        (folder / below / "train.py").write_text(script)
        (folder / "small.yaml").write_text("")
    directory = tmp_path / (cwd or "was")
    directory.mkdir(exist_ok=True)
    name = os.path.relpath(was / below / "train.py", directory)
    code = Code(directory=str(directory), files={name: hash_of("of A\n")})
    command = ("python3", *(each.format(was=was) for each in words))
    found = started(RunManifest(1, command=command, code=code), tmp_path, directory=copy)
    assert (found.directory / found.command[1]).read_text() == "of A\n"
    assert str(was) not in " ".join(found.command)
    assert found.others == ()


def test_other_code_than_was_recorded_is_named_and_a_folder_without_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    code = Code(directory=str(tmp_path), files={"train.py": hash_of("of A\n")})
    manifest = RunManifest(1, command=("python3", str(tmp_path / "train.py")), code=code)
    with pytest.raises(InvalidInput, match=r"train\.py is not in it"):
        started(manifest, tmp_path, directory=tmp_path / "copy")
    (tmp_path / "copy" / "train.py").write_text("of B\n")
    assert started(manifest, tmp_path, directory=tmp_path / "copy").others == ("train.py",)
    said = ("python3", str(tmp_path / "copy" / "train.py"))
    assert started(manifest, tmp_path, directory=tmp_path, command=said).others == ("train.py",)


def test_what_the_user_says_goes_before_what_was_recorded(tmp_path: Path) -> None:
    found = started(RunManifest(1), tmp_path, directory=tmp_path, command=("true",), ranks=3)
    assert (found.directory, found.command, found.ranks) == (tmp_path, ("true",), 3)
    large = RunManifest(1, settings={"topology": {"world_size": "4096"}})
    with pytest.raises(InvalidInput, match="--ranks"):
        started(large, tmp_path, directory=tmp_path, command=("true",))
