"""A run on this machine with everything that Prometheus may scrape of it."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from prometheus_server import Target
from server_process import ServerProcess

from holdfast.agent.sensors.fault_script import Fault, inject
from holdfast.cli.statedirectory import StateDirectory

JOB = "default/toy"
NAMESPACE = "demo"
TOY = """
import time
import torch, torch.distributed as dist
from holdfast.trainer import Run

run = Run()

def train(assignment):
    step = 0
    while True:
        step += 1
        dist.all_reduce(torch.ones(1))
        time.sleep(0.05)
        run.step(step, loss=2.0 + 1.0 / step, grad_norm=1.0, tokens=1000)

run.enter(train)
"""
JOB_FILE = """
apiVersion: holdfast.dev/v1alpha1
kind: TrainingJob
metadata: {name: toy}
spec:
  entrypoint: [train.py]
  nodes: {min: 2, max: 2}
  cost: {gpuHour: 2.5}
  utilization: {gigaflopsPerToken: 0.5, peakTeraflopsPerGpu: 100}
  startup: {preflight: none}
"""


@dataclass(frozen=True)
class MonitoredRun:
    """Where its parts are found."""

    directory: StateDirectory
    rack: str = ""  # where its nodes stand

    def targets(self) -> list[Target]:
        """The watchdog and the agents there are now, with the labels that discovery would give."""
        found = []
        watchdog = self.directory.listening_at()
        if watchdog is not None:
            found.append(_target(f"{watchdog.host}:{watchdog.port}", "watchdog", pod="watchdog"))
        for file in self.directory.root.glob("nodes/*/agent.json"):
            told = json.loads(file.read_text())
            if _is_alive(told["pid"]):
                address = f"{told['host']}:{told['port']}"
                found.append(_target(address, "agent", node=told["node"], rack=self.rack))
        return found

    def suffer(self, node: str, fault: Fault) -> None:
        """Make it happen to the simulated GPUs of `node`."""
        inject(str(self.directory.root / "nodes" / node), fault)

    def nodes(self) -> list[str]:
        return sorted(file.parent.name for file in self.directory.root.glob("nodes/*/agent.json"))


@contextmanager
def monitored_run(folder: Path) -> Iterator[MonitoredRun]:
    """Start it; it is gone afterwards, however the test ends."""
    (folder / "train.py").write_text(TOY)
    (folder / "job.yaml").write_text(JOB_FILE)
    state = folder / "state"
    holdfast = [sys.executable, "-c", "from holdfast.cli.main import main; main()"]
    command = [*holdfast, "run", str(folder / "job.yaml"), "--state-dir", str(state)]
    process = ServerProcess("holdfast run", command, folder / "run.log")
    process.start()
    try:
        yield MonitoredRun(StateDirectory(state))
    finally:
        process.stop()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _target(address: str, component: str, **labels: str) -> Target:
    part = {"app_kubernetes_io_name": "holdfast", "app_kubernetes_io_component": component}
    return Target(address, {**part, "namespace": NAMESPACE, **labels})
