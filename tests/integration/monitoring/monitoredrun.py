"""A run on this machine with everything that Prometheus may scrape of it."""

import json
import os
from dataclasses import dataclass

from prometheus_server import Target

from holdfast.agent.sensors.simulated_gpu import Fault, inject
from holdfast.cli.statedirectory import StateDirectory

JOB = "default/toy"
NAMESPACE = "demo"


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


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _target(address: str, component: str, **labels: str) -> Target:
    part = {"app_kubernetes_io_name": "holdfast", "app_kubernetes_io_component": component}
    return Target(address, {**part, "namespace": NAMESPACE, **labels})
