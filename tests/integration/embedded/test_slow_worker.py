"""A real run with a worker that something outside of it slows down: it is named with its cause, a spare takes its
rank, and training goes on.
"""

import json
import os
import re
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from embeddedrun import holdfast, job_file, wait_until
from patience import patient

from holdfast.cli.statedirectory import StateDirectory

pytestmark = pytest.mark.long

UNTIL = 60
STOPPED_S, PERIOD_S = 0.2, 0.5
SCRAPES_S = 0.2  # as a rule it is slow for a second or more after it was found: until the round is saved
RULES = Path(__file__).parents[3] / "helm" / "holdfast" / "rules"

TRAINS = f"""
import json, os, sys, time
from pathlib import Path
import torch, torch.distributed as dist
from holdfast.checkpoint import Checkpointer
from holdfast.trainer import Run

run = Run(backend="gloo")
folder = Path(sys.argv[1])

def batches():
    while True:
        yield torch.ones(4, 8)

def train(part):
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    saves = Checkpointer(run, model=model, optimizer=optimizer, compares_batches=False)
    is_first = not (folder / "first").exists() or (folder / "first").read_text() == str(part.round)
    dist.barrier()
    if part.rank == 1:
        (folder / "told").write_text(str(os.getpid()))
        os.replace(folder / "told", folder / ("worker" if is_first else "another"))
        if is_first:
            (folder / "first").write_text(str(part.round))
    for step, batch in saves.steps(batches(), until={UNTIL}):
        model(batch).square().mean().backward()
        for each in model.parameters():
            dist.all_reduce(each.grad)
        optimizer.step()
        optimizer.zero_grad()
        if is_first:
            busy = time.thread_time() + 0.1
            while time.thread_time() < busy:
                pass
            time.sleep(0.8)
        run.step(step, loss=1.0)
        if part.rank == 0:
            with open(folder / "steps.jsonl", "a") as file:
                file.write(json.dumps([part.round, step]) + "\\n")
    saves.close()

run.enter(train)
"""
POLICY = f"""  faultPolicy:
    heartbeat: {{interval: 200ms, lost: {patient(5):.0f}s}}
    straggler: {{slowerThan: 20%, sustained: 3steps, action: Swap}}
"""


class Slowed:
    """A run whose rank 1 is slowed down from outside until another process has its rank."""

    def __init__(self, folder: Path, slow_down: "SlowDown") -> None:
        folder.mkdir()
        self.folder, self._state = folder, folder / "state"
        self._job = job_file(
            folder, script=TRAINS, words=[str(folder)], nodes="{min: 2, max: 2, spares: 1}", more=POLICY
        )
        self._ended: subprocess.CompletedProcess[str] | None = None
        self.pages: list[str] = []  # as Prometheus would have scraped them while it was slow
        self._threads = (
            threading.Thread(target=self._run),
            threading.Thread(target=self._scrape),
            threading.Thread(target=slow_down, args=(self.worker, self.is_slow)),
        )
        for each in self._threads:
            each.start()

    def _run(self) -> None:
        self._ended = holdfast("run", self._job, "--state-dir", self._state)

    def _scrape(self) -> None:
        directory = StateDirectory(self._state)
        self.worker()
        while self.is_slow():
            with suppress(OSError):  # it is about to end
                self.pages.append(scraped(directory))
            time.sleep(SCRAPES_S)

    def worker(self) -> int:
        """The process that runs rank 1 in the first round, once it trains."""
        wait_until((self.folder / "worker").exists, "rank 1 of the first round", within_s=patient(30))
        return int((self.folder / "worker").read_text())

    def is_slow(self) -> bool:
        """Whether it still has the rank."""
        return self._threads[0].is_alive() and not (self.folder / "another").exists()

    def healed(self) -> dict[str, Any]:
        """The one incident about rank 1; the run has ended well. On a loaded machine others may be slow, too."""
        for each in self._threads:
            each.join()
        assert self._ended is not None
        assert self._ended.returncode == 0, self._ended.stderr
        told = holdfast("incidents", "--state-dir", self._state, "-o", "json").stdout
        [incident] = [each for each in json.loads(told) if each["culprit"].get("rank") == 1]
        return dict(incident)

    def steps(self) -> list[tuple[int, int]]:
        """Round and step of each that was trained, in order."""
        lines = (self.folder / "steps.jsonl").read_text().splitlines()
        return [(number, step) for number, step in map(json.loads, lines)]


def alert_of(name: str) -> tuple[str, float]:
    """Of an alert whose series is to be above a limit: both."""
    groups = yaml.safe_load((RULES / "jobs.yaml").read_text())["groups"]
    [expr] = [rule["expr"] for group in groups for rule in group["rules"] if rule.get("alert") == name]
    found = re.fullmatch(r"max by \([\w, ]+\) \((\w+)\) > ([\d.]+)", expr)
    assert found is not None, expr
    return found[1], float(found[2])


def scraped(directory: StateDirectory) -> str:
    """The watchdog's page of metrics."""
    listening = directory.listening_at()
    assert listening is not None
    request = urllib.request.Request(
        f"http://{listening.host}:{listening.port}/metrics",
        headers={"Authorization": f"Bearer {directory.token()}"},
    )
    with urllib.request.urlopen(request, timeout=patient(10)) as answered:
        return str(answered.read().decode())


def series(page: str, name: str) -> dict[str, float]:
    """Values by labels."""
    found = re.findall(rf"^{name}\{{(.*)\}} (\S+)", page, re.MULTILINE)
    return {labels: float(value) for labels, value in found}


SlowDown = Callable[[Callable[[], int], Callable[[], bool]], None]
"""Slows a process down while it is to be slow."""


def stop_in_bursts(worker: Callable[[], int], is_slow: Callable[[], bool]) -> None:
    pid = worker()
    with suppress(ProcessLookupError):
        while is_slow():
            os.kill(pid, signal.SIGSTOP)
            time.sleep(STOPPED_S)
            os.kill(pid, signal.SIGCONT)
            time.sleep(PERIOD_S - STOPPED_S)


@pytest.mark.timeout(300)
def test_a_worker_that_is_slowed_down_is_named_with_its_cause_and_a_spare_takes_its_rank(tmp_path: Path) -> None:
    run = Slowed(tmp_path / "run", stop_in_bursts)
    incident = run.healed()
    assert (incident["kind"], incident["cause"], incident["state"]) == ("Straggler", "slow: software", "Recovered")
    assert incident["culprit"]["rank"] == 1
    assert "was stopped" in incident["evidence"][0]["says"]
    the_alert_has_what_it_goes_by(run.pages, incident["culprit"]["node"])
    assert incident["actions"][-1]["does"].endswith(f"node {incident['culprit']['node']} stays as a spare")
    # Saved first, then left: a step may have been complete on all ranks in between.
    assert incident["lost_steps"] <= 1
    assert incident["slowed"]["rank_s"] == pytest.approx(
        2 * incident["slowed"]["steps"] * incident["slowed"]["excess_s"]
    )
    steps = run.steps()
    _, second = sorted({number for number, _ in steps})
    began = min(step for number, step in steps if number == second)
    kept = [step for number, step in steps if number == second or step < began]
    assert kept == list(range(1, UNTIL + 1))


def the_alert_has_what_it_goes_by(pages: list[str], node: str) -> None:
    """While it is slow there is a series above the alert's limit, with what the alert says of it."""
    name, limit = alert_of("HoldfastStraggler")
    labels = ('cause="Software"', f'node="{node}"', 'rank="1"')
    firing = [
        page
        for page in pages
        for told, value in series(page, name).items()
        if value > limit and all(each in told for each in labels)
    ]
    assert firing, [series(page, name) for page in pages]
    assert min(series(firing[0], "holdfast_job_slowed_rank_seconds_total").values()) > 0.0
