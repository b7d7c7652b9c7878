"""Scripts as people have them: mistakes at the start, floods of output, odd paths, what they leave behind."""

import json
from pathlib import Path
from typing import Any

import psutil
import pytest
from embeddedrun import holdfast, job_file

pytestmark = pytest.mark.long

# What a real script does all at once: a path that is not ASCII, loaders that fork, a port that somebody holds in
# front of it, much output in one line and in many, daemons that nobody ends, an exception on one rank.
ROUGH = r"""
import os, socket, subprocess, sys, time
from pathlib import Path
import torch, torch.distributed as dist
from torch.utils.data import DataLoader

folder = Path(sys.argv[1])
rank, port = int(os.environ["RANK"]), int(os.environ["MASTER_PORT"])
if rank == 0 and not (folder / "held").exists():
    holder = "import socket, sys, time; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); "
    holder += "print(flush=True); time.sleep(600)"
    subprocess.Popen([sys.executable, "-c", holder, str(port)], stdout=subprocess.PIPE).stdout.readline()
    (folder / "held").touch()
dist.init_process_group("gloo")
first = not (folder / "raised").exists()
print("ü" * 100_000)
for line in range(20_000):
    print("a line of output, one of very many", line)
os.environ["LEFT"] = f"{folder}/left-{rank}"
subprocess.run("setsid sh -c 'echo $$ >> \"$LEFT\"; exec sleep 600' &", shell=True)
for batch in DataLoader(list(range(8)), num_workers=1):
    dist.all_reduce(torch.ones(1))
    if first and rank == 1:
        (folder / "raised").touch()
        raise ValueError("größer als erlaubt")
while not (folder / f"left-{rank}").exists():
    time.sleep(0.01)
dist.barrier()
"""

ARGUMENTS = "import argparse\nargparse.ArgumentParser().parse_args()\n"


def incidents(state: Path) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = json.loads(
        holdfast("incidents", "--state-dir", state, "-o", "json").stdout or "[]"
    )
    return told


def test_a_rough_script_trains_and_what_it_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "Größe 规模"
    folder.mkdir()
    # Nothing is learned: this says no more than torch, and another parent would cost its import.
    startup = "{preflight: none, preload: []}"
    nodes, state = "{min: 2, max: 2}", folder / "state"
    job = job_file(folder, script=ROUGH, words=[str(folder)], nodes=nodes, startup=startup)
    ended = holdfast("run", job, "--state-dir", state)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    kinds = [each["kind"] for each in incidents(state)]
    assert "UserCode" in kinds
    why = holdfast("why", "last", "--state-dir", state).stdout
    assert "größer als erlaubt" in why
    culprits = [each["culprit"] for each in incidents(state) if each["kind"] == "UserCode"]
    assert [each.get("node") for each in culprits] == [None] * len(culprits)
    left = [int(pid) for file in folder.glob("left-*") for pid in file.read_text().split()]
    assert len(left) >= 3
    assert [pid for pid in left if psutil.pid_exists(pid)] == []


@pytest.mark.parametrize(
    ("script", "words", "says"),
    [
        ("import flash_attention_9\n", (), ("No module named 'flash_attention_9'", "install the")),
        (ARGUMENTS, ("--lrr", "3"), ("exit code 2", "spec.entrypoint")),
    ],
    ids=["a missing module", "a bad argument"],
)  # fmt: skip
def test_a_mistake_of_a_script_is_tried_once_and_told_with_what_mends_it(
    tmp_path: Path, script: str, words: tuple[str, ...], says: tuple[str, ...]
) -> None:
    startup = "{preflight: none, preload: []}"
    job = job_file(tmp_path, script=script, words=words, nodes="{min: 2, max: 2}", startup=startup)
    state = tmp_path / "state"
    ended = holdfast("run", job, "--state-dir", state)
    assert ended.returncode != 0
    (incident,) = incidents(state)
    assert (incident["kind"], incident["state"]) == ("UserCode", "Paged")
    logs = [path.name for path in state.rglob("rank-*.log")]
    assert len(logs) == 2, "one round, two ranks"
    for words_ in says:
        assert words_ in ended.stdout + ended.stderr


def test_the_doctor_reads_a_script_and_does_not_run_it(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch.multiprocessing as mp\nmp.spawn(train, nprocs=8)\nraise SystemExit(9)\n")
    told = holdfast("doctor", script)
    assert told.returncode == 1, told.stderr
    assert "it starts its training processes itself at train.py:2" in told.stdout
