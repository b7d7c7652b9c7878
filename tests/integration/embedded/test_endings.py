"""How a run ends by hand or by itself, and what the same command does then: with real processes."""

import os
import re
import shlex
import signal
from pathlib import Path

import pytest
from embeddedrun import PATIENCE_S, holdfast, interrupt, running, wait_until

from holdfast.cli.statedirectory import StateDirectory

SCRIPT = """
import argparse, os, pathlib, signal, sys, time
import torch
from holdfast.checkpoint import Checkpointer
from holdfast.trainer import Run
words = argparse.ArgumentParser()
words.add_argument("--steps", type=int)
words.add_argument("--pause", type=float, default=0.0)
given = words.parse_args()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
run = Run()
def train(part):
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    checkpointer = Checkpointer(run, model=model, optimizer=optimizer, every_steps=1000)
    batches = [torch.full((1, 2), index / 10_000) for index in range(10_000)]
    for step, batch in checkpointer.steps(batches, until=given.steps):
        loss = model(batch).mean(); loss.backward()
        run.step(step, loss=loss)
        with open("steps.txt", "a") as file:
            file.write(f"{step} {os.getpid()} {batch[0, 0] * 10_000:.0f}\\n")
        time.sleep(given.pause)
    checkpointer.close()
run.enter(train)
"""  # fmt: skip


def job(folder: Path, *words: str, script: str = "train.py", nodes: int = 1) -> Path:
    """The job's file, with these words as the script's arguments."""
    (folder / "train.py").write_text(SCRIPT)
    (folder / "tune.py").write_text(SCRIPT)
    file = folder / "job.yaml"
    entrypoint = ", ".join(f'"{word}"' for word in (script, *words))
    file.write_text(
        "apiVersion: holdfast.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: ends}\nspec:\n"
        f"  entrypoint: [{entrypoint}]\n  nodes: {{min: 1, max: {nodes}}}\n  startup: {{preflight: none}}\n"
    )
    return file


def steps_in(folder: Path) -> list[tuple[int, int]]:
    """The steps that were made and by which process, as the script wrote them."""
    return [(step, pid) for step, pid, _ in lines_in(folder)]


def lines_in(folder: Path) -> list[tuple[int, int, int]]:
    """Steps, the processes that made them, and the numbers of their batches."""
    file = folder / "steps.txt"
    lines = file.read_text().splitlines() if file.exists() else []
    return [(int(step), int(pid), int(batch)) for step, pid, batch in map(str.split, lines)]


def test_workers_that_are_told_to_end_and_end_with_zero_are_replaced_and_train_to_the_end(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with running("run", job(tmp_path, "--steps", "60", "--pause", "0.1"), "--state-dir", state) as process:
        wait_until(lambda: len(steps_in(tmp_path)) >= 5, "some steps")
        os.kill(steps_in(tmp_path)[-1][1], signal.SIGTERM)
        said = process.communicate(timeout=PATIENCE_S)[0]
    assert process.returncode == 0, said
    assert "exit code 0 after signal 15 (SIGTERM)" in said
    made = steps_in(tmp_path)
    assert made[-1][0] == 60
    assert len({pid for _, pid in made}) == 2


def test_a_run_that_is_stopped_by_hand_saves_first_and_goes_on_from_there(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with running("run", job(tmp_path, "--steps", "60", "--pause", "0.1"), "--state-dir", state) as process:
        wait_until(lambda: len(steps_in(tmp_path)) >= 5, "some steps")
        said = interrupt(process)
    last = said.splitlines()[-1]
    assert process.returncode == 130
    assert last.startswith("stopped; step ")
    assert last.endswith(" is saved, and the same command goes on from there")
    saved = int(last.split()[2])
    before = len(steps_in(tmp_path))
    ended = holdfast("run", job(tmp_path, "--steps", "60", "--pause", "0.1"), "--state-dir", state)
    assert ended.returncode == 0, ended.stderr
    assert [step for step, _ in steps_in(tmp_path)[before:]] == list(range(saved + 1, 61))


def test_a_run_that_is_stopped_while_its_watchdog_is_away_saves_once_that_is_back(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with running("run", job(tmp_path, "--steps", "1000", "--pause", "0.1"), "--state-dir", state) as process:
        wait_until(lambda: len(steps_in(tmp_path)) >= 5, "some steps")
        watchdog = StateDirectory(state).listening_at()
        assert watchdog is not None
        os.kill(watchdog.pid, signal.SIGKILL)
        said = interrupt(process)
    assert said.splitlines()[-1].endswith(" is saved, and the same command goes on from there"), said


@pytest.mark.parametrize(("script", "nodes"), [("tune.py", 1), ("train.py", 2)])
def test_after_success_more_steps_go_on_and_another_program_or_world_takes_a_word(
    tmp_path: Path, script: str, nodes: int
) -> None:
    state = tmp_path / "state"
    assert holdfast("run", job(tmp_path, "--steps", "3"), "--state-dir", state).returncode == 0
    same = holdfast("run", job(tmp_path, "--steps", "3"), "--state-dir", state)
    assert (same.returncode, len(steps_in(tmp_path))) == (0, 3)
    more = holdfast("run", job(tmp_path, "--steps", "5"), "--state-dir", state)
    assert more.returncode == 0, more.stderr
    assert "arguments were --steps 3, are --steps 5" in more.stderr
    assert [step for step, _ in steps_in(tmp_path)] == [1, 2, 3, 4, 5]
    another = job(tmp_path, "--steps", "7", script=script, nodes=nodes)
    asked = holdfast("run", another, "--state-dir", state)
    assert asked.returncode == 2
    assert "--continue" in asked.stderr
    assert "--fresh" in asked.stderr
    assert len(steps_in(tmp_path)) == 5, "nothing was started"
    told = holdfast("run", another, "--state-dir", state, "--continue")
    assert told.returncode == 0, told.stderr
    assert max(step for step, _ in steps_in(tmp_path)) == 7


def test_a_run_that_was_stopped_begins_again_without_the_batches_it_is_told_to_pass_over(tmp_path: Path) -> None:
    state, file = tmp_path / "state", job(tmp_path, "--steps", "60", "--pause", "0.1")
    with running("run", file, "--state-dir", state) as process:
        wait_until(lambda: len(steps_in(tmp_path)) >= 5, "some steps")
        saved = int(interrupt(process).splitlines()[-1].split()[2])
    before = len(steps_in(tmp_path))
    ended = holdfast("run", file, "--state-dir", state, "--skip-batches", "4")
    assert ended.returncode == 0, ended.stderr
    assert "without the next 4 batches" in ended.stderr
    step, _, batch = lines_in(tmp_path)[before]
    assert (step, batch) == (saved + 1, saved + 4)


BAD_BATCH = """
import pathlib, sys
import torch
from holdfast.checkpoint import Checkpointer
from holdfast.trainer import Run
run = Run()
def train(part):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    data = torch.ones(30, 2)
    data[int(sys.argv[1])] = float("nan")
    checkpointer = Checkpointer(run, model=model, optimizer=optimizer, every_steps=5)
    for step, batch in checkpointer.steps(torch.utils.data.DataLoader(data, batch_size=1)):
        loss = model(batch).square().mean(); loss.backward()
        optimizer.step(); optimizer.zero_grad()
        run.step(step, loss=loss)
        with open("steps.txt", "a") as file:
            file.write(f"{step} {part.round}\\n")
    checkpointer.close()
    pathlib.Path("finite").write_text(str(all(bool(each.isfinite().all()) for each in model.parameters())))
run.enter(train)
"""


def test_a_run_that_failed_of_one_batch_begins_again_without_it_by_the_commands_it_says(
    tmp_path: Path,
) -> None:
    state, file = tmp_path / "state", job(tmp_path, "17", script="bad.py")
    (tmp_path / "bad.py").write_text(BAD_BATCH)
    refused = holdfast("run", file, "--state-dir", state, "--skip-batches", "1")
    assert (refused.returncode, "nothing was trained yet" in refused.stderr) == (2, True)
    failed = holdfast("run", file, "--state-dir", state)
    assert failed.returncode == 1, failed.stderr
    found = re.search(r"holdfast skip-batches (\d+) --job ends", failed.stderr)
    assert found is not None, failed.stderr
    asked = holdfast("skip-batches", found[1], "--state-dir", state)
    assert asked.returncode == 3
    begun = asked.stderr.strip().rpartition("to begin it again without them: holdfast ")[2]
    again = holdfast(*shlex.split(begun))
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "finite").read_text() == "True"
    refused = holdfast("run", file, "--state-dir", state, "--skip-batches", "1")
    assert (refused.returncode, "the job has succeeded" in refused.stderr) == (2, True)
