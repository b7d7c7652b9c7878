"""What is collected of how a run was started."""

import os
import select
import subprocess
from pathlib import Path

import pytest
from patience import patient

from holdfast.api.control import Assignment
from holdfast.api.round import Endpoint, Restore, Tier
from holdfast.api.runmanifest import DIFF_BYTES_MAX, RunManifest, Section
from holdfast.api.secrecy import LEFT_OUT
from holdfast.trainer import sourcecode
from holdfast.trainer.description import Description, environment_of, flat
from holdfast.trainer.sourcecode import code_of


def git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=someone", "-c", "user.email=someone@example.com")
    subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A work tree with one committed script."""
    folder = tmp_path / "tree"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "train.py").write_text("rate = 1\n")
    (folder / ".env").write_text("A=1\n")
    git(folder, "add", "train.py", ".env")
    git(folder, "commit", "-qm", "first")
    return folder


def test_the_commit_and_the_diff_of_tracked_files_are_known(tree: Path) -> None:
    (tree / "train.py").write_text("rate = 2\n")
    (tree / ".env").write_text("A=verysecret\n")
    (tree / "untracked.py").write_text("x = 1\n")
    code = code_of(tree, tree / "train.py")
    assert len(code.commit) == 40
    assert code.root == str(tree)
    assert "-rate = 1\n+rate = 2" in code.diff
    assert "verysecret" not in code.diff
    assert "untracked" not in code.diff
    assert (code.left_out, code.unknown) == ("", "")
    assert list(code.files) == ["train.py"]


def test_a_git_that_hangs_ends_with_all_it_started(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "git"
    program.write_text(f"#!/bin/sh\nsleep 600 & echo $! > {tmp_path}/child\nwait\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(sourcecode, "PATIENCE_S", 0.5)
    assert "did not answer" in code_of(tree, tree / "train.py").unknown
    try:
        child = os.pidfd_open(int((tmp_path / "child").read_text()))
    except ProcessLookupError:
        return
    try:
        assert select.select([child], [], [], patient(10.0))[0], "what it started lives on"
    finally:
        os.close(child)


def test_a_diff_can_be_applied_whatever_the_users_settings_are(tree: Path) -> None:
    git(tree, "config", "diff.noprefix", "true")
    (tree / "train.py").write_text("rate = 2\n")
    assert "--- a/train.py\n+++ b/train.py\n" in code_of(tree, tree / "train.py").diff
    (tree / "train.py").write_bytes("rate = 2  # caf\xe9\n".encode("latin-1"))
    assert code_of(tree, tree / "train.py").left_out == "a file is no UTF-8"


def test_secrets_in_the_diff_are_left_out_and_it_says_so(tree: Path) -> None:
    (tree / "train.py").write_text('API_KEY = "hunter2hunter2"\n')
    code = code_of(tree, tree / "train.py")
    assert "hunter2" not in code.diff
    assert code.left_out == "what looks like a secret"


def test_a_long_diff_is_cut_and_it_says_so(tree: Path) -> None:
    (tree / "train.py").write_text("rate = 3\n" * 20_000)
    code = code_of(tree, tree / "train.py")
    assert len(code.diff) == DIFF_BYTES_MAX
    assert code.left_out.startswith("cut after")


def test_without_a_work_tree_or_without_git_the_hashes_alone_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "train.py"
    script.write_text("rate = 1\n")
    outside = code_of(tmp_path, script)
    monkeypatch.setenv("PATH", str(tmp_path))
    without = code_of(tmp_path, script)
    assert (outside.commit, without.commit, without.unknown) == ("", "", "there is no git")
    assert "is this a work tree?" in outside.unknown
    assert list(without.files) == ["train.py"]


def test_a_git_that_hangs_is_ended(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "git").write_text("#!/bin/sh\nexec sleep 60\n")
    (programs / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr(sourcecode, "PATIENCE_S", 0.1)
    assert "did not answer" in code_of(tree, None).unknown


def test_of_the_environment_only_what_matters_is_kept() -> None:
    around = {
        "NCCL_ALGO": "Ring",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "OMP_NUM_THREADS": "1",
        "TORCH_LOGS_TOKEN": "x",
        "AWS_SECRET_ACCESS_KEY": "y",
        "HOME": "/root",
        "TORCHINDUCTOR_CACHE_DIR": "/somewhere",
    }
    assert environment_of(around) == {
        "NCCL_ALGO": "Ring",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "OMP_NUM_THREADS": "1",
    }


def test_settings_are_taken_apart_and_secrets_left_out() -> None:
    said = flat({"seed": 3, "model": {"width": 8, "act": "gelu"}, "wandb": {"api_key": "abc"}})
    assert said == {"seed": "3", "model.width": "8", "model.act": "gelu", "wandb.api_key": LEFT_OUT}


def test_a_manifest_is_collected_beside_the_training_and_a_round_later_it_knows_the_new_world() -> None:
    def part(number: int, world_size: int) -> Assignment:
        return Assignment(
            job="a/b",
            round=number,
            rank=0,
            local_rank=0,
            world_size=world_size,
            local_size=1,
            endpoint=Endpoint("", 0),
            restore=Restore(tier=Tier.NONE),
            reason="",
        )

    told: list[RunManifest] = []
    description = Description()
    description.configure({"seed": 3})
    description.begin(part(1, 2), told=told.append)
    first = description.wait()
    assert first is not None
    assert told == [first]
    assert first.of(Section.SEEDS)["seed"] == "3"
    assert first.of(Section.TOPOLOGY)["world_size"] == "2"
    assert "torch" in first.of(Section.PACKAGES)
    assert first.of(Section.VERSIONS)["torch"]
    assert "torch.deterministic_algorithms" in first.of(Section.DETERMINISM)
    description.begin(part(2, 4), told=told.append)
    thread = description._thread
    assert thread is not None
    thread.join()
    assert [each.of(Section.TOPOLOGY)["world_size"] for each in told] == ["2", "4"]
    assert told[1].code == first.code
