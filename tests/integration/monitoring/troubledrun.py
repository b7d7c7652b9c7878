"""A run on this machine, as monitoredrun.py has one, and what befalls it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from monitoredrun import MonitoredRun
from patience import patient
from server_process import ServerProcess

from holdfast.agent.sensors.simulated_gpu import Fault
from holdfast.cli.statedirectory import StateDirectory

RACK = "r7"
HOLDFAST = (sys.executable, "-c", "from holdfast.cli.main import main; main()")
ANSWER_S_MAX = patient(30.0)
TOY = """
import os, sys, time
import torch, torch.distributed as dist
from holdfast.trainer import Run

run = Run()

def train(part):
    step = 0
    time.sleep(6.0)  # as a script that reads an index of its data first: what a fault costs is not over at once
    while True:
        step += 1
        dist.all_reduce(torch.ones(1))
        # Eight in a row that are left out count as a fault.
        is_bad = part.rank == 1 and step % 7 != 0 and os.path.exists(sys.argv[1])
        time.sleep(1.0 if is_bad else 0.1)
        loss = float("nan") if is_bad else 2.0 + 1.0 / step
        run.should_skip(step, loss=loss, grad_norm=1.0)
        run.step(step, loss=loss, grad_norm=1.0, tokens=1000)

run.enter(train)
"""
JOB_FILE = """
apiVersion: holdfast.dev/v1alpha1
kind: TrainingJob
metadata: {{name: toy}}
spec:
  entrypoint: [train.py, {bad_batch}]
  nodes: {{min: 2, max: 2, spares: 1}}
  cost: {{gpuHour: 2.5, budget: {{amount: 100000}}}}
  utilization: {{gigaflopsPerToken: 0.5, peakTeraflopsPerGpu: 100}}
  startup: {{preflight: none}}
  faultPolicy:
    hang: {{timeout: 12s}}
    restarts: {{max: 2, per: 20s, backoff: 1s}}
    budget: {{evictions: 1, per: 25s, clusterFraction: 50%}}
"""

FAULTS = """
- {at: {step: 150}, do: slow, rank: 0, for: 40, seconds: 0.4}
- {at: {step: 300}, do: spike, rank: 0, for: 60, times: 100}
- {at: {step: 300}, do: spike, rank: 1, for: 60, times: 100}
"""


DAMAGED = """
import time
import torch, torch.distributed as dist
from holdfast.checkpoint import Checkpointer
from holdfast.trainer import Run

run = Run()


def batches(rank):
    number = 0
    while True:
        number += 1
        # No batch comes twice, and its samples are not all the same.
        yield torch.full((4, 8), 0.01 * (rank + number % 7) + 1e-6 * number) + 1e-3 * torch.arange(4)[:, None]


def train(part):
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    checkpointer = Checkpointer(run, model=model, optimizer=optimizer, every_steps=20)
    for step, batch in checkpointer.steps(batches(part.rank), until=1_000_000):
        loss = model(batch).square().mean()
        loss.backward()
        for each in model.parameters():
            dist.all_reduce(each.grad)
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.3)
        run.step(step, loss=float(loss))


run.enter(train)
"""
DAMAGED_JOB = """
apiVersion: holdfast.dev/v1alpha1
kind: TrainingJob
metadata: {name: toy}
spec:
  entrypoint: [train.py]
  nodes: {min: 3, max: 3}
  faultPolicy:
    corruption: {fingerprintEverySteps: 5}
    budget: {evictions: 50, per: 1h, clusterFraction: 100%}
    loss: {rewindAfter: 10steps}
"""
# In 40 steps two checkpoints fail; at three in a row a rank gives up.
DAMAGE = """
- {at: {step: 0}, do: compute-wrong, node: node-2}
- {at: {step: 45}, do: full-disk, rank: 1, for: 40}
- {at: {step: 120}, do: wrong-data, rank: 1, for: 8}
- {at: {step: 150}, do: flip-bit, rank: 1, bit: 23}
- {at: {step: 190}, do: spike, rank: 2, for: 20, times: 100}
"""


@dataclass(frozen=True)
class TroubledRun(MonitoredRun):
    """Two nodes that train and a spare, all in one rack; what is lost is not replaced."""

    bad_batch: Path = Path()  # while it exists, rank 1 computes NaN

    def heat(self, *nodes: str, celsius: float) -> None:
        for node in nodes:
            self.suffer(node, Fault(gpu=0, temperature_c=celsius))

    def stop_worker(self, rank: int) -> None:
        """SIGSTOP."""
        os.kill(self._rank(rank)["pid"], signal.SIGSTOP)

    def node_of(self, rank: int) -> str:
        return str(self._rank(rank)["node"])

    def hand(self, node: str) -> None:
        """Bring an evicted node back, as an administrator does."""
        self._ask("return", node, "--reason", "checked")

    def _rank(self, rank: int) -> dict[str, Any]:
        ranks: list[dict[str, Any]] = json.loads(self._ask("ranks", "-o", "json"))
        return ranks[rank]

    def _ask(self, *words: str) -> bytes:
        command = [*HOLDFAST, *words, "--state-dir", str(self.directory.root)]
        return subprocess.run(command, capture_output=True, check=True, timeout=ANSWER_S_MAX).stdout


@contextmanager
def troubled_run(folder: Path, token: str) -> Iterator[TroubledRun]:
    """Start it, with this token; it is gone afterwards, however the test ends."""
    bad_batch = folder / "bad-batch"
    job = JOB_FILE.format(bad_batch=json.dumps(str(bad_batch)))
    with _started(folder, token, script=TOY, job=job, faults=FAULTS, options=["--no-replace"]) as directory:
        yield TroubledRun(directory, RACK, bad_batch)


@contextmanager
def damaged_run(folder: Path, token: str) -> Iterator[MonitoredRun]:
    """Likewise: three nodes that save checkpoints and compare fingerprints; what is lost is replaced."""
    with _started(folder, token, script=DAMAGED, job=DAMAGED_JOB, faults=DAMAGE) as directory:
        yield MonitoredRun(directory)


@contextmanager
def _started(
    folder: Path, token: str, *, script: str, job: str, faults: str, options: Sequence[str] = ()
) -> Iterator[StateDirectory]:
    (folder / "train.py").write_text(script)
    (folder / "job.yaml").write_text(job)
    (folder / "faults.yaml").write_text(faults)
    directory = StateDirectory(folder / "state")
    directory.root.mkdir()
    directory.token_file.write_text(token)
    directory.token_file.chmod(0o600)
    command = [*HOLDFAST, "run", str(folder / "job.yaml"), "--state-dir", str(directory.root)]
    process = ServerProcess(
        "holdfast run", [*command, "--faults", str(folder / "faults.yaml"), *options], folder / "run.log"
    )
    process.start()
    try:
        yield directory
    finally:
        process.stop()
