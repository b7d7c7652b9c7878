"""A job of half an hour under random faults: does each step train what it trains in a run that nothing disturbs?

    python bench/undisturbed.py [--minutes 30] [--every 20] [--seed 0] [--pace 0.1]

Two ranks train over several epochs, from a stateful loader with workers, shuffled, with dropout, DDP, AdamW and a
scheduler. Once undisturbed; then under kills, stops, ends and evictions, picked from a seed, until the job itself
ends. Each rank writes its samples and its loss for each step that it makes, also for one that is made again.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from drill.processes import none_left_behind
from figure import BUILD, Figure, publish
from soak import HOLDFAST, Deed, Soak, none

from holdfast.api.status import JobPhase
from holdfast.cli.localsite import LocalSource

RANKS: Final = 2
EPOCHS: Final = 5
BATCH: Final = 4
BUSY_SHARE: Final = 0.6  # of the time that a disturbed run trains; the rest it heals
ENDS_WITHIN: Final = 4.0  # times as long as it should take

SCRIPT: Final = f"""
import json, os, sys, time
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset, DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader
from holdfast.checkpoint import Checkpointer
from holdfast.trainer import Run

batches, pace, folder = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
run = Run(backend="gloo")

class Numbers(Dataset):
    def __len__(self):
        return batches * {RANKS} * {BATCH}
    def __getitem__(self, place):
        return place, torch.sin(torch.arange(8.0) * (place + 1))

def train(part):
    torch.set_num_threads(1)
    torch.manual_seed(1)
    layers = torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1)
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps={EPOCHS} * batches + 1)
    sampler = DistributedSampler(Numbers(), seed=5)
    loader = StatefulDataLoader(Numbers(), {BATCH}, sampler=sampler, num_workers=2)
    saves = Checkpointer(run, model=model, optimizer=optimizer, scheduler=scheduler, every_steps=50)
    for epoch in range(saves.epoch, {EPOCHS}):
        sampler.set_epoch(epoch)
        for step, (places, batch) in saves.steps(loader):
            time.sleep(pace)
            loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
            loss.backward(); optimizer.step(); optimizer.zero_grad(); scheduler.step()
            run.step(step, loss=loss)
            line = json.dumps([step, epoch, places.tolist(), float(loss).hex()]) + "\\n"
            with open(f"{{folder}}/rank-{{part.rank}}.jsonl", "a") as file:
                file.write(line)
    saves.close()

run.enter(train)
"""

JOB_FILE: Final = f"""
apiVersion: holdfast.dev/v1alpha1
kind: TrainingJob
metadata: {{{{name: soak, namespace: bench}}}}
spec:
  entrypoint: [train.py, "{{batches}}", "{{pace}}", "{{folder}}"]
  nodes: {{{{min: {RANKS}, max: {RANKS}, spares: 1}}}}
  startup: {{{{preflight: none}}}}
  faultPolicy:
    hang: {{{{timeout: 10s}}}}
    restarts: {{{{max: 10000, per: 1h, backoff: 1s}}}}
    budget: {{{{evictions: 10000, per: 1h, clusterFraction: 100%}}}}
"""

Trained = dict[tuple[int, int], tuple[object, ...]]
"""By rank and step: the epoch, the samples and the loss."""


@dataclass(frozen=True)
class Lines:
    """What the ranks wrote: each step as it was made last, and how many were made otherwise before."""

    last: Trained
    wavered: int

    @classmethod
    def of(cls, folder: Path) -> "Lines":
        last: Trained = {}
        wavered = 0
        for rank in range(RANKS):
            for line in (folder / f"rank-{rank}.jsonl").read_text().splitlines():
                try:
                    step, *made = json.loads(line)
                except ValueError:
                    continue  # of a rank that was killed while it wrote
                told = tuple(map(str, made))
                wavered += last.setdefault((rank, step), told) != told
                last[rank, step] = told
        return cls(last, wavered)


def unlike(ours: Mapping[tuple[int, int], object], others: Mapping[tuple[int, int], object]) -> list[str]:
    """The steps of ranks that one of them has and the other has not, or has otherwise."""
    places = sorted(ours.keys() | others.keys())
    return [f"rank {each[0]}, step {each[1]}" for each in places if ours.get(each) != others.get(each)]


def job(folder: Path, batches: int, pace: float) -> str:
    """The job's file; its script is laid beside it."""
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    return JOB_FILE.format(batches=batches, pace=pace, folder=folder)


def undisturbed(folder: Path, batches: int) -> Lines:
    """The same job with no pauses in it, and nothing done to it."""
    text = job(folder, batches, 0.0)
    (folder / "job.yaml").write_text(text)
    command = (*HOLDFAST, "run", str(folder / "job.yaml"), "--state-dir", str(folder / "state"))
    subprocess.run(command, check=True, capture_output=True, env=dict(os.environ))
    return Lines.of(folder)


def compare(folder: Path, given: argparse.Namespace) -> list[Figure]:
    """Train it both ways; a disturbed run that does not end is one that trains too little."""
    batches = max(1, int(given.minutes * 60.0 * BUSY_SHARE / given.pace / EPOCHS))
    quiet = undisturbed(folder / "quiet", batches)
    run = Soak.start(folder / "loud", given.seed, job(folder / "loud", batches, given.pace), tuple(Deed))
    deadline = time.monotonic() + given.minutes * 60.0 * ENDS_WITHIN
    while not run.has_ended(within_s=given.every):
        if time.monotonic() > deadline:
            run.stop()
            break
        run.strike()
    has_succeeded = LocalSource(run.state).last().status.phase is JobPhase.SUCCEEDED
    loud = Lines.of(folder / "loud")
    for each in (differ := unlike(loud.last, quiet.last))[:10]:
        print(f"differs: {each}")
    of = f"of {EPOCHS * batches} steps on {RANKS} ranks, {len(run.struck)} faults"
    return [
        none("jobs that did not succeed", int(not has_succeeded), of),
        none("steps that are missing, too many, or of other samples or losses", len(differ), of),
        none("steps made again that came out otherwise", loud.wavered, of),
    ]


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--every", type=float, default=20.0, help="seconds from fault to fault")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pace", type=float, default=0.1, help="seconds that a step waits")
    parser.add_argument("--output", type=Path, default=BUILD, help="folder for undisturbed.json")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="undisturbed-") as folder, none_left_behind():
        publish("undisturbed", compare(Path(folder), given), folder=given.output)


if __name__ == "__main__":
    main()
