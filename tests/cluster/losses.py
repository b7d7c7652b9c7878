"""What is lost on the cluster of the tests, and how long a job stands still for it."""

import time
from dataclasses import dataclass

from cluster import Cluster
from installation import PARTS, Installation
from live_job import LiveJob, Trained
from patience import patient

HEALED_WITHIN_S = 15.0  # of the loss of any one node with whatever of Holdfast on it, without a human
LEADERS_WITHIN_S = 30.0  # of Redis' primary, the leading watchdog and the acting operator together
WORKER_S = 2.5  # of a killed worker
# How long a heal takes is a figure of bench/failover.py, on a machine that does nothing else.
PATIENCE_S = patient(60.0)
# Copies to another node follow a moment later: with a node its memory goes, and the steps not yet copied. They are
# short here, and five nodes share a machine: a handful of them, far from the newest durable checkpoint.
NOT_COPIED_STEPS_MAX = 20


@dataclass(frozen=True)
class Healed:
    """After so many seconds a newer round had trained a step; so many steps were trained again for it."""

    what: str
    took_s: float
    again: int

    def __str__(self) -> str:
        return f"trained again {self.took_s:.1f} s after {self.what}, {self.again} steps anew"


class Loss:
    """Made just before the loss; `healed` waits and says what it cost."""

    def __init__(self, job: LiveJob, what: str):
        self.job = job
        self.what = what
        self._before: Trained = job.newest()
        self._at = len(job.trained())
        self._began = time.monotonic()

    def healed(self) -> Healed:
        """Raises AssertionError with all that a person would look at when it takes `PATIENCE_S`."""
        is_newer = lambda: self.job.newest().round > self._before.round  # noqa: E731
        self.job.wait(f"a newer round after {self.what}", is_newer, PATIENCE_S)
        took_s = time.monotonic() - self._began
        self.job.wait_for_steps()
        trained = self.job.trained()
        anew = next(each.step for each in trained[self._at :] if each.round > self._before.round)
        last = max(each.step for each in trained[self._at - 1 :] if each.round <= self._before.round)
        healed = Healed(self.what, took_s, last - anew + 1)
        print(healed)
        return healed


def has_spare(job: LiveJob) -> bool:
    members = job.status().get("members", {})
    return (members.get("ready"), members.get("spares")) == (2, 1)


def wait_until_whole(installed: Installation, job: LiveJob) -> None:
    """Nothing is still missing of what an earlier loss took: one at a time is what Holdfast bears."""
    job.wait("a spare", lambda: has_spare(job), patient(240.0))
    job.wait("an installation with all its parts", installed.is_whole, patient(240.0))


def kill_worker(job: LiveJob, node: str) -> None:
    """End what trains there, as a kernel short of memory would: the children of the launcher's warm parent."""
    machine = job.cluster.nodes[node].machine
    listed = [line.split(maxsplit=2) for line in machine.run("ps", "-eo", "pid,ppid,args").splitlines()[1:]]
    warm = {pid: parent for pid, parent, command in listed if "launch.warm_parent" in command}
    workers = [pid for pid, parent in warm.items() if parent in warm]
    assert workers, listed
    machine.run("kill", "-KILL", *workers)


def worker_is_lost(installed: Installation, job: LiveJob) -> Healed:
    """A worker alone: what a heal costs on this machine now.

    Never on the last node by name, so that those that die while each node in turn is without power do not all die
    on one: the third on a node and none elsewhere takes it out of the job.
    """
    wait_until_whole(installed, job)
    loss = Loss(job, "the loss of a worker")
    kill_worker(job, min(rank["node"] for rank in job.ranks()))
    return loss.healed()


def node_is_lost(cluster: Cluster, job: LiveJob, name: str) -> Healed:
    """The node's power, and at once a worker on another one. The node is back when this returns."""
    installed = Installation(cluster)
    wait_until_whole(installed, job)
    bears = sorted(
        pod for part in PARTS for pod, each in installed.pods(part).items() if each["spec"]["nodeName"] == name
    )
    trains = [rank["node"] for rank in job.ranks()]
    elsewhere = next(node for node in trains if node != name)
    role = "with a rank" if name in trains else "without a rank"
    loss = Loss(job, f"the loss of {name} {role}, with {', '.join(bears)}")
    cluster.nodes[name].kill()
    kill_worker(job, elsewhere)
    try:
        healed = loss.healed()
    finally:
        cluster.nodes[name].start()
    cluster.wait_ready(name)
    assert healed.again <= (NOT_COPIED_STEPS_MAX if name in trains else 1), healed
    return healed


def leaders_are_lost(installed: Installation, job: LiveJob) -> Healed:
    """Redis' primary, the leading watchdog and the acting operator crash together, and a worker."""
    wait_until_whole(installed, job)
    lost = (installed.primary(), installed.leader(), installed.lease_holder())
    node = job.ranks()[0]["node"]
    loss = Loss(job, f"the loss of {', '.join(lost)}")
    installed.kill(*lost)
    kill_worker(job, node)
    healed = loss.healed()
    assert healed.again <= 1, healed
    job.wait("another holder of the lease", lambda: installed.lease_holder() not in ("", lost[2]))
    job.wait("a primary", installed.primary)
    return healed
