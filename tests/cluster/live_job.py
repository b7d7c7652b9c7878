"""A TrainingJob that trains in pods, as somebody with kubectl sees it."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from cluster import WITHIN_S, Cluster
from kubernetes_binaries import kubernetes_program
from mounted_torch import with_torch
from patience import patient

EXAMPLE = Path(__file__).parents[2] / "examples" / "bytes" / "cluster.yaml"
NAMESPACE = "default"
TRAININGJOBS = f"/apis/holdfast.dev/v1alpha1/namespaces/{NAMESPACE}/trainingjobs"
COMMAND_S_MAX = patient(90.0)
LOG_LINES = 15


@dataclass(frozen=True)
class Trained:
    """One step as rank 0 noted it; `loss` is exact, in hexadecimal."""

    step: int
    loss: str
    round: int


def example() -> list[dict[str, Any]]:
    """The example as it is shipped, the job last; torch is mounted, for the tests' image of it has none."""
    claim, job = yaml.safe_load_all(EXAMPLE.read_text())
    return [claim, with_torch(job)]


def apply_example(job: "LiveJob") -> None:
    manifests = {"apiVersion": "v1", "kind": "List", "items": example()}
    job.kubectl("apply", "-f", "-", given=json.dumps(manifests))


class LiveJob:
    """`losses` is the file that the job's rank 0 appends to, seen from here."""

    def __init__(self, cluster: Cluster, name: str, losses: Path):
        self.cluster = cluster
        self.name = name
        self._losses = losses

    def kubectl(self, *arguments: str, given: str | None = None) -> str:
        return self.cluster.kubectl("-n", NAMESPACE, *arguments, given=given)

    def holdfast(self, *arguments: str) -> str:
        """What `kubectl holdfast` printed: the plugin, found by kubectl on the path. Raises RuntimeError."""
        programs = (str(Path(sys.executable).parent), str(Path(kubernetes_program("kubectl")).parent))
        ended = subprocess.run(
            [str(kubernetes_program("kubectl")), "holdfast", *arguments],
            capture_output=True,
            text=True,
            timeout=COMMAND_S_MAX,
            check=False,
            env={
                **os.environ,
                "PATH": os.pathsep.join((*programs, os.environ["PATH"])),
                "KUBECONFIG": str(self.cluster.server.admin_kubeconfig()),
            },
        )
        if ended.returncode != 0:
            words = " ".join(arguments)
            raise RuntimeError(
                f"kubectl holdfast {words} ended with {ended.returncode}: {ended.stderr}{ended.stdout}"
            )
        return ended.stdout

    def object(self) -> dict[str, Any]:
        return self.cluster.server.call("GET", f"{TRAININGJOBS}/{self.name}")

    def status(self) -> dict[str, Any]:
        """As the operator wrote it; step and checkpoint are up to half a minute old."""
        status: dict[str, Any] = self.object().get("status", {})
        return status

    def condition(self, type_: str) -> str:
        """`True`, `False` or `Unknown`, and its reason: "False Trouble"."""
        found = [each for each in self.status().get("conditions", ()) if each["type"] == type_]
        return f"{found[0]['status']} {found[0]['reason']}" if found else "none"

    def ranks(self) -> list[dict[str, Any]]:
        """The ranks of the round, each with its member and node, as the watchdog knows them now."""
        ranks: list[dict[str, Any]] = json.loads(self.holdfast("ranks", self.name, "-o", "json"))
        return ranks

    def healed(self) -> dict[str, dict[str, Any]]:
        """The incidents that something was done about, by id, as the watchdog knows them now. Others are only told
        of, as data that come too slowly: so they do, where many nodes share one machine.
        """
        shown = json.loads(self.holdfast("incidents", self.name, "-o", "json"))
        return {each["id"]: each for each in shown if each.get("actions")}

    def pods(self) -> dict[str, dict[str, Any]]:
        """The job's pods by name, ended ones too."""
        return self.cluster.pods(NAMESPACE, f"holdfast.dev/job={self.name}")

    def trained(self) -> list[Trained]:
        """Every step in the order in which it was trained; one that a fault took back is there twice."""
        if not self._losses.exists():
            return []
        lines = self._losses.read_text().splitlines(keepends=True)
        whole = [json.loads(line) for line in lines if line.endswith("\n")]
        return [Trained(line["step"], line["hex"], line["round"]) for line in whole]

    def newest(self) -> Trained:
        trained = self.trained()
        return trained[-1] if trained else Trained(-1, "", 0)

    def events(self) -> list[str]:
        """`REASON: message` of every event about the job, the oldest first."""
        listed = self.kubectl(
            "get", "events", "--field-selector", f"involvedObject.name={self.name}", "-o", "json"
        )
        items = sorted(json.loads(listed)["items"], key=lambda each: each.get("lastTimestamp") or "")
        return [f"{each['reason']}: {each['message']}" for each in items]

    def wait(self, what: str, is_so: Any, within_s: float = WITHIN_S) -> None:
        """Raises AssertionError with all that a person would look at."""
        try:
            self.cluster.wait(what, is_so, within_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.describe()}") from None

    def wait_while_it_trains(self, what: str, is_so: Any) -> None:
        """However long it takes, as long as there are further steps."""
        while not is_so():
            at = len(self.trained())
            self.wait(f"{what}, nor a further step", lambda at=at: is_so() or len(self.trained()) > at)

    def wait_for_steps(self, count: int = 5, within_s: float = WITHIN_S) -> Trained:
        """Until the newest round trained `count` more steps."""
        at = len(self.trained())
        self.wait(f"{count} more steps", lambda: len(self.trained()) >= at + count, within_s)
        return self.newest()

    def describe(self) -> str:
        """The job, what it trained last, and the last words of its pods and of Holdfast's."""
        parts = [self.kubectl("get", "tj", self.name, "-o", "yaml"), f"trained last: {self.newest()}"]
        parts += self._last_words(NAMESPACE, sorted(self.pods()))
        names = self.cluster.kubectl("get", "pods", "-n", "holdfast", "-o", "name").split()
        parts += self._last_words("holdfast", names)
        return "\n".join(parts)

    def _last_words(self, namespace: str, pods: Sequence[str]) -> list[str]:
        words = []
        for pod in pods:
            try:
                said = self.cluster.kubectl("logs", "-n", namespace, pod, f"--tail={LOG_LINES}")
            except RuntimeError as error:  # a pod on a dead node has no words
                said = str(error)
            words.append(f"--- {namespace} {pod}\n{said}")
        return words
