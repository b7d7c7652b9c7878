"""How long a killed worker of a Transformers script takes to its next step: with its imports at hand, and without.

python bench/preload.py [--pairs 5] [--busy 0]

Each pair is two runs of one script, an unmodified Trainer of a small GPT-2 on two ranks: with `startup.preload` as
unasked, and with none. In each a rank is killed once the script trains (and its imports are learned and made), and
the time is taken from the kill to the end of the first step in the next round. `--busy` processes keep the
processors busy meanwhile, as other work on a machine does.
"""

import argparse
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from figure import Figure, measured, publish

Found = TypeVar("Found")
WITHIN_S: Final = 240.0
SHARE: Final = 0.25
"""Of the time without: what is imported by torch alone, and what the Trainer does after it, is in both."""
SCRIPT: Final = """
import os, sys, time
from pathlib import Path
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

class Tells(TrainerCallback):
    def on_step_end(self, args, state, control, **more):
        path = Path(sys.argv[1], f"step-{os.environ['HOLDFAST_ROUND']}-{os.environ['RANK']}")
        if not path.exists():
            path.with_suffix(".new").write_text(f"{os.getpid()} {time.monotonic()}")
            os.replace(path.with_suffix(".new"), path)
        time.sleep(0.1)
        control.should_training_stop = Path(sys.argv[1], "end").exists()

class Words(torch.utils.data.Dataset):
    def __len__(self): return 100_000
    def __getitem__(self, at):
        ids = torch.arange(at, at + 16) % 64
        return {"input_ids": ids, "labels": ids}

model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=64, n_positions=16))
arguments = TrainingArguments(sys.argv[1] + "/out", per_device_train_batch_size=2, save_strategy="no",
                              use_cpu=True, report_to=[], disable_tqdm=True, logging_steps=10_000)
Trainer(model=model, args=arguments, train_dataset=Words(), callbacks=[Tells()]).train()
"""
JOB: Final = """
apiVersion: holdfast.dev/v1alpha1
kind: TrainingJob
metadata: {{name: preload}}
spec:
  entrypoint: [train.py, {folder}]
  nodes: {{min: 2, max: 2}}
  startup: {{preflight: none, preload: {preload}}}
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--busy", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, busy(given.busy):
        os.environ.update(HOLDFAST_CACHE=f"{folder}/cache", HOLDFAST_CONSOLE="0")
        times: dict[str, list[float]] = {"[learned]": [], "[]": []}
        for pair in range(given.pairs):
            order = list(times)[:: 1 if pair % 2 == 0 else -1]
            for preload in order:
                place = Path(folder, f"{pair}-{len(preload)}")
                place.mkdir()
                times[preload].append(healing(place, preload))
                print(f"pair {pair} preload {preload}: {times[preload][-1]:.2f} s", flush=True)
    name = f"from a kill to the next step of a Transformers Trainer, {given.busy} busy processes beside it"
    figures: list[Figure] = [
        measured(name, ours=times["[learned]"], other=times["[]"], unit="s", target=SHARE),
    ]
    publish("preload", figures)


def healing(folder: Path, preload: str) -> float:
    """Seconds from the kill of rank 1 to the end of the first step that it takes in the next round."""
    (folder / "train.py").write_text(SCRIPT)
    (folder / "job.yaml").write_text(JOB.format(folder=folder, preload=preload))
    state = folder / "state"
    command = [sys.executable, "-m", "holdfast.cli", "run", str(folder / "job.yaml"), "--state-dir", str(state)]
    with (folder / "run.txt").open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        first = waited_for(lambda: newest(folder, rank=1, after=""), folder)
        if preload != "[]":
            logs = [state / "logs" / f"node-{node}.launcher.log" for node in (1, 2)]
            waited_for(lambda: all("imported beforehand" in log.read_text() for log in logs), folder)
        time.sleep(1.0)  # what a node imported is no longer in anybody's way
        killed_at = time.monotonic()
        os.kill(int(first.read_text().split()[0]), signal.SIGKILL)
        again = waited_for(lambda: newest(folder, rank=1, after=first.name), folder)
        (folder / "end").touch()
        return float(again.read_text().split()[1]) - killed_at
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def newest(folder: Path, *, rank: int, after: str) -> Path | None:
    """The mark of the first step of a later round than `after` tells of."""
    marks = [path for path in folder.glob(f"step-*-{rank}") if path.name > after]
    return max(marks, default=None)


def waited_for(look: Callable[[], Found | None], folder: Path) -> Found:
    """What `look` finds, once it does."""
    until = time.monotonic() + WITHIN_S
    while not (found := look()):
        if time.monotonic() > until:
            raise TimeoutError((folder / "run.txt").read_text()[-2000:])
        time.sleep(0.01)
    return found


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep so many processors busy."""
    processes = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()


def _spin() -> None:
    while True:
        pass


if __name__ == "__main__":
    main()
