import json
import subprocess
import sys
from pathlib import Path

import click
import pytest

from holdfast.checkpoint.commit.discovery import staged_name
from holdfast.checkpoint.commit.folder import FolderCommits
from holdfast.checkpoint.commit.retention import Need, Retention
from holdfast.checkpoint.format.index import Box, Index, StoredChunk, StoredObject, StoredTensor, encode
from holdfast.checkpoint.format.manifest import BLOCK_BYTES, FORMAT, FileRecord, Manifest
from holdfast.checkpoint.format.manifest import encode as encode_manifest
from holdfast.checkpoint.storage.local import LocalStorage
from holdfast.cli.commands.checkpoint import checkpoint
from holdfast.cli.main import answer, holdfast
from holdfast.cli.target import Program

FILE = "__0_0.distcp"
HEALTH = ("HEALTHY", "VERIFIED", "STANDING")
CONTENT = bytes(range(256)) * (BLOCK_BYTES // 256) + b"tail" * 16


def index_of(size: int) -> Index:
    box = Box(offsets=(0, 0), sizes=(2, 8))
    tensor = StoredTensor("float32", (2, 8), (StoredChunk(FILE, 0, 64, 0, box),))
    entries = {"model.weight": tensor, "scheduler": StoredObject(FILE, 64, size - 64)}
    return Index(entries, {"model.weight": ("model", "weight"), "scheduler": ("scheduler",)})


def save(
    root: Path,
    step: int,
    *,
    round: int = 1,
    parent: int | None = None,
    index: Index | None = None,
    healthy: bool | None = None,
) -> Path:
    """A committed checkpoint without a tensor library."""
    storage = LocalStorage(root)
    number = FolderCommits(storage).enter(owner="test", round=round)
    folder = staged_name(step, round=number, token="t")
    storage.make(folder)
    documents = {FILE: CONTENT, "index.json": encode(index or index_of(len(CONTENT)))}
    files: dict[str, FileRecord] = {
        name: storage.write(f"{folder}/{name}", [memoryview(content)]) for name, content in documents.items()
    }
    manifest = Manifest(
        format=FORMAT,
        step=step,
        round=number,
        parent=parent,
        world_size=1,
        batches=step,
        files=files,
        healthy=healthy,
    )
    storage.write(f"{folder}/manifest.json", [memoryview(encode_manifest(manifest))])
    FolderCommits(storage).publish(folder, step=step, round=number)
    return root / f"step-{step:08d}"


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_the_subcommands_and_their_options_are_the_promised_ones() -> None:
    given = {
        name: [opt for each in command.params if isinstance(each, click.Option) for opt in each.opts]
        for name, command in checkpoint.commands.items()
    }
    assert given == {
        "take": [
            *("--reason", "--dry-run", "--timeout", "--no-wait"),
            *("-n", "--namespace", "--context", "--kubeconfig", "--holdfast-namespace", "--holdfast-service"),
            *("--state-dir", "--watchdog", "--token-file", "--ca-file"),
        ],
        "ls": ["-o", "--output"],
        "show": ["--step", "--tensor", "-o", "--output"],
        "verify": ["--step", "--all", "-o", "--output"],
        "diff": ["-o", "--output"],
        "convert": ["--to", "--step", "--select", "--tensors-only"],
        "fits": ["--step", "--within", "-o", "--output"],
        "prune": ["--keep", "--compared-every", "--dry-run", "-o", "--output"],
    }


def test_a_checkpoint_is_asked_for_without_the_word_take(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["checkpoint", "default/bytes", "--dry-run", "--state-dir", "nowhere"]) == answer(
        ["checkpoint", "take", "default/bytes", "--dry-run", "--state-dir", "nowhere"]
    )
    first, second = capsys.readouterr().err.splitlines()
    assert first == second


def test_kubectl_lists_only_what_asks_a_job() -> None:
    with click.Context(holdfast, obj=Program.KUBECTL) as parent:
        assert checkpoint.list_commands(click.Context(checkpoint, parent=parent)) == ["take"]


def test_ls_says_what_the_next_restore_would_try(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, 4)
    save(tmp_path, 8)
    save(tmp_path, 12)
    save(tmp_path, 6, round=2, parent=4)  # Went back to 4.
    (tmp_path / "step-00000012" / FILE).unlink()
    assert answer(["checkpoint", "ls", str(tmp_path), "-o", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(each["step"], each["standing"]) for each in listed] == [
        (12, "unreadable"),
        (8, "given up"),
        (6, "newest"),
        (4, "kept"),
    ]
    assert FILE in listed[0]["reason"]
    assert all(each["committedAt"] > 1e9 for each in listed)
    assert answer(["checkpoint", "ls", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["STEP", "ROUND", "WORLD", "SIZE", "COMMITTED", "PARENT", *HEALTH, "KEPT"]
    assert lines[3].split()[:4] == ["6", "2", "1", "4.0"]


def test_ls_says_how_each_stands_and_why_it_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in (4, 8, 12, 16, 20, 24):
        save(tmp_path, step, healthy=step <= 16)
    (tmp_path / "step-00000024" / FILE).unlink()
    need = Need(compared_every=4, verified=9, unhealthy_from=15, keep=1)
    LocalStorage(tmp_path).commits.retire(Retention(9), round=1, token="t", need=need)
    assert answer(["checkpoint", "ls", str(tmp_path), "-o", "json"]) == 0
    listed = {each["step"]: each for each in json.loads(capsys.readouterr().out)}
    assert {step: (each["committed"], each["healthy"], each["verified"]) for step, each in listed.items()} == {
        24: (False, None, None),
        20: (True, False, False),
        16: (True, False, False),
        12: (True, True, False),
        8: (True, True, True),
        4: (True, True, True),
    }
    assert {step: each["kept"] for step, each in listed.items()} == {
        24: ["Evidence"],
        20: ["Newest"],
        16: [],
        12: ["NewestHealthy", "UntilCompared"],
        8: ["NewestVerified", "UntilCompared"],
        4: ["UntilCompared"],
    }
    assert listed[12]["standing"] == "newest"
    assert answer(["checkpoint", "ls", str(tmp_path)]) == 0
    table = capsys.readouterr().out
    assert "newest of keep 1" in table
    assert "newest healthy, may be needed until compared" in table
    assert answer(["checkpoint", "show", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "step-00000012" in shown, "the one that a restore would try first"
    assert "newest healthy" in shown
    words = ["checkpoint", "prune", str(tmp_path), "--keep", "1"]
    assert answer(words) == 0
    assert "found no step healthy from 15 on" in capsys.readouterr().err
    assert (tmp_path / "step-00000012").is_dir()


def test_where_no_job_has_said_what_it_keeps_that_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path, 4, healthy=True)
    save(tmp_path, 8)
    assert answer(["checkpoint", "ls", str(tmp_path), "-o", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(each["kept"], each["keep"], each["healthy"], each["verified"]) for each in listed] == [
        ([], None, None, None),
        (["NewestHealthy"], None, True, None),
    ]
    (tmp_path / "step-00000004" / FILE).unlink()
    assert answer(["checkpoint", "ls", str(tmp_path), "-o", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(each["kept"], each["healthy"]) for each in listed] == [
        (["NewestUnknown"], None),
        ([], None),
    ]
    assert answer(["checkpoint", "ls", str(tmp_path)]) == 0
    assert "newest that may be healthy" in capsys.readouterr().out
    (tmp_path / "need.json").write_text("{")
    assert answer(["checkpoint", "ls", str(tmp_path)]) == 0
    assert "what a rewind needs cannot be read" in capsys.readouterr().err


def test_a_plain_prune_keeps_the_newest_healthy_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in (4, 8, 12):
        save(tmp_path, step, healthy=step <= 4)
    assert answer(["checkpoint", "prune", str(tmp_path), "--keep", "1"]) == 0
    assert capsys.readouterr().out.split() == ["step-00000008"]


def test_a_directory_that_is_not_there_is_wrong_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["checkpoint", "ls", str(tmp_path / "away")]) == 2
    assert "name a directory of checkpoints" in capsys.readouterr().err
    assert answer(["checkpoint", "show", str(tmp_path)]) == 2
    assert "no checkpoint is there" in capsys.readouterr().err


def test_show_lists_tensors_objects_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save(tmp_path, 8)
    for uri in (tmp_path.as_uri(), str(folder), f"{folder}/"):
        assert answer(["checkpoint", "show", uri]) == 0
    assert "model.weight  float32  2×8    1       64 B" in capsys.readouterr().out
    assert answer(["checkpoint", "show", str(folder), "-o", "name"]) == 0
    assert capsys.readouterr().out.split() == ["model.weight", "scheduler"]
    assert answer(["checkpoint", "show", str(folder), "--tensor", "model.weight", "-o", "yaml"]) == 0
    assert "offsets:" in capsys.readouterr().out
    assert answer(["checkpoint", "show", str(folder), "--tensor", "weight"]) == 2
    assert "there are model.weight" in capsys.readouterr().err
    assert answer(["checkpoint", "show", str(folder), "--step", "4"]) == 2


def test_verify_names_the_damaged_block_of_the_damaged_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path, 4)
    folder = save(tmp_path, 8)
    assert answer(["checkpoint", "verify", str(tmp_path), "--all"]) == 0
    assert capsys.readouterr().out.count("intact") == 2
    flip(folder / FILE, BLOCK_BYTES + 3)
    assert answer(["checkpoint", "verify", str(tmp_path)]) == 1
    assert f"{FILE}, block at {BLOCK_BYTES}: the block differs" in capsys.readouterr().out
    assert answer(["checkpoint", "verify", str(tmp_path), "--step", "4"]) == 0
    assert answer(["checkpoint", "verify", str(tmp_path), "--all", "-o", "name"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "step-00000008"


@pytest.mark.parametrize("file", [FILE, "index.json", "manifest.json"])
def test_verify_finds_a_flipped_bit_in_any_file(tmp_path: Path, file: str) -> None:
    folder = save(tmp_path, 4)
    flip(folder / file, 10)
    assert answer(["checkpoint", "verify", str(folder)]) == 1


def test_verify_finds_an_index_that_promises_more_than_the_files_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save(tmp_path, 4, index=index_of(len(CONTENT) + 1))
    assert answer(["checkpoint", "verify", str(folder)]) == 1
    assert "scheduler would end at" in capsys.readouterr().out


def test_prune_keeps_the_newest_and_says_what_went(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in (4, 8, 12):
        save(tmp_path, step)
    words = ["checkpoint", "prune", str(tmp_path), "--keep", "1"]
    assert answer([*words, "--dry-run"]) == 0
    assert capsys.readouterr().out.split() == ["step-00000004", "step-00000008"]
    assert len(list(tmp_path.glob("step-*"))) == 3
    assert answer(words) == 0
    assert capsys.readouterr().out.split() == ["step-00000004", "step-00000008"]
    assert [each.name for each in tmp_path.glob("step-*")] == ["step-00000012"]
    assert answer(words) == 0
    assert capsys.readouterr().out == "nothing to delete\n"


def test_prune_keeps_what_the_job_left_as_needed_for_a_rewind_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (4, 8, 12, 16):
        save(tmp_path, step)
    need = Need(compared_every=100, verified=10)
    LocalStorage(tmp_path).commits.retire(Retention(9), round=1, token="t", need=need)
    words = ["checkpoint", "prune", str(tmp_path), "--keep", "1"]
    for _ in range(2):
        assert answer(words) == 0
        said = capsys.readouterr()
        assert (
            "kept for a rewind: step-00000008 "
            "(the job compares replicas every 100 steps and has verified them after step 10 last)"
        ) in said.err
        assert sorted(each.name for each in tmp_path.glob("step-*")) == ["step-00000008", "step-00000016"]
    (tmp_path / "need.json").write_text("{")
    assert answer(words) == 1
    assert "what a rewind needs cannot be read" in capsys.readouterr().err
    assert (tmp_path / "step-00000008").is_dir()


def test_prune_deletes_nothing_when_nothing_that_stays_is_intact(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path, 4)
    flip(save(tmp_path, 8) / FILE, 0)
    assert answer(["checkpoint", "prune", str(tmp_path), "--keep", "1"]) == 1
    assert "nothing was deleted" in capsys.readouterr().err
    assert (tmp_path / "step-00000004").is_dir()


def test_prune_waits_for_a_save_that_is_being_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, 4)
    save(tmp_path, 8)
    (tmp_path / staged_name(12, round=1, token="t")).mkdir()
    assert answer(["checkpoint", "prune", str(tmp_path), "--keep", "1"]) == 3
    assert "a save is being written" in capsys.readouterr().err
    assert (tmp_path / "step-00000004").is_dir()


def test_a_round_goes_on_saving_after_a_prune(tmp_path: Path) -> None:
    for step in (4, 8):
        save(tmp_path, step)
    assert answer(["checkpoint", "prune", str(tmp_path), "--keep", "1"]) == 0
    save(tmp_path, 12)
    assert [each.name for each in sorted(tmp_path.glob("step-*"))] == ["step-00000008", "step-00000012"]


def test_looking_at_checkpoints_imports_no_torch(tmp_path: Path) -> None:
    save(tmp_path, 4)
    script = (
        "import sys; from holdfast.cli.main import answer;"
        f"code = answer(['checkpoint', 'verify', {str(tmp_path)!r}]);"
        "sys.exit(code or ('torch' in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=60, capture_output=True).returncode == 0


def test_without_the_library_each_says_what_to_install(tmp_path: Path) -> None:
    commands = [["ls"], ["show"], ["verify"], ["prune", "--keep", "1"]]
    script = (
        "import sys; sys.modules['xxhash'] = None; from holdfast.cli.main import answer;"
        f"print([int(answer(['checkpoint', *words, {str(tmp_path)!r}])) for words in {commands!r}])"
    )
    ended = subprocess.run([sys.executable, "-c", script], timeout=60, capture_output=True, text=True)
    assert ended.stdout == "[3, 3, 3, 3]\n", ended.stderr
    assert ended.stderr.count("pip install 'holdfast[torch]'") == 4
