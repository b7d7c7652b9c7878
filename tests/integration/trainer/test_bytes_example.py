"""The example, run as its readers run it. Every example is a test."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from patience import patient

from holdfast.api.trainingjob import read_trainingjob

EXAMPLE = Path(__file__).parents[3] / "examples" / "bytes"
SMALL = ("--batch", "4", "--length", "16", "--layers", "1", "--width", "16", "--heads", "2")
PLAIN = (sys.executable,)
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "words.txt").write_text("the quick brown fox jumps over the lazy dog. " * 200)
    return folder


def run(*words: str, launcher: tuple[str, ...] = PLAIN) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [*launcher, str(EXAMPLE / "train.py"), *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=patient(90))


def losses(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def train(text: Path, into: Path, *words: str, launcher: tuple[str, ...] = PLAIN) -> list[dict[str, Any]]:
    into.unlink(missing_ok=True)
    done = run(*SMALL, "--text", str(text), "--losses", str(into), *words, launcher=launcher)
    assert done.returncode == 0, done.stderr
    return losses(into)


@pytest.mark.parametrize("launcher", [PLAIN, TORCHRUN], ids=["plain python", "torchrun with two ranks"])
def test_an_interrupted_run_gives_the_same_losses_bit_for_bit(
    text: Path, tmp_path: Path, launcher: tuple[str, ...]
) -> None:
    checkpoints = ("--checkpoint", str(tmp_path / "checkpoints"), "--checkpoint-every", "2")
    whole = train(text, tmp_path / "whole.jsonl", "--steps", "6", launcher=launcher)
    begun = train(text, tmp_path / "begun.jsonl", "--steps", "3", *checkpoints, launcher=launcher)
    resumed = train(text, tmp_path / "resumed.jsonl", "--steps", "6", *checkpoints, launcher=launcher)
    assert [line["step"] for line in whole] == [1, 2, 3, 4, 5, 6]
    assert begun + resumed == whole
    assert all(float.fromhex(line["hex"]) == line["loss"] for line in whole)


@pytest.mark.parametrize("name", ["missing", "empty"])
def test_a_text_folder_that_cannot_be_trained_on_ends_in_one_clear_sentence(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    done = run("--text", str(tmp_path / name))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"train.py: --text {tmp_path / name}: ")


def test_the_job_file_is_a_training_job_whose_entry_point_is_there() -> None:
    job = read_trainingjob(yaml.safe_load((EXAMPLE / "job.yaml").read_text()))
    assert (EXAMPLE / job.spec.entrypoint[0]).is_file()
