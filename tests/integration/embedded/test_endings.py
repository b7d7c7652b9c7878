"""How a run ends by hand or by itself, and what the same command does then: with real processes."""

import os
import signal
from pathlib import Path

import pytest
from embeddedrun import PATIENCE_S, holdfast, interrupt, running, wait_until

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
    for step, batch in checkpointer.steps(torch.ones(10_000, 2).split(1), until=given.steps):
        loss = model(batch).mean(); loss.backward()
        run.step(step, loss=loss)
        with open("steps.txt", "a") as file:
            file.write(f"{step} {os.getpid()}\\n")
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
    file = folder / "steps.txt"
    lines = file.read_text().splitlines() if file.exists() else []
    return [(int(step), int(pid)) for step, pid in (line.split() for line in lines)]


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
