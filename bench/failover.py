"""How long training stands still when a node with parts of Holdfast on it, or all leaders at once, are lost.

    python bench/failover.py [--rounds 2]

On the cluster of the tests (three nodes on this machine, their cores shared), with the chart installed and the
example training: each node in turn loses its power while a worker is killed on another one; then Redis' primary,
the leading watchdog and the acting operator crash together with a worker. The control plane of the tests calls a
node NotReady after 8 s, where Kubernetes' default is 40 s or more.
"""

import argparse
from typing import Final

from apply import installed  # puts the tests' folders on the path: first
from figure import Figure, measured, publish

from cluster import Cluster  # isort: skip  from the tests' folder
from installation import Installation  # isort: skip
from live_job import LiveJob, apply_example  # isort: skip
from losses import (  # isort: skip
    HEALED_WITHIN_S,
    LEADERS_WITHIN_S,
    WORKER_S,
    Healed,
    has_spare,
    leaders_are_lost,
    node_is_lost,
    worker_is_lost,
)
from shared_volume import SharedVolume  # isort: skip

STARTS_WITHIN_S: Final = 600.0


def losses(cluster: Cluster, job: LiveJob, rounds: int) -> list[Figure]:
    installation = Installation(cluster)
    worker, leaders, nodes = list[Healed](), list[Healed](), dict[str, list[Healed]]()
    for _ in range(rounds):
        worker.append(worker_is_lost(installation, job))
        for name in sorted(cluster.nodes):
            nodes.setdefault(name, []).append(node_is_lost(cluster, job, name))
        leaders.append(leaders_are_lost(installation, job))
    return [
        figure("the loss of a worker", worker, WORKER_S),
        *(
            figure(f"the loss of {name} and a worker elsewhere", each, HEALED_WITHIN_S)
            for name, each in nodes.items()
        ),
        figure("the loss of all leaders and a worker", leaders, LEADERS_WITHIN_S),
    ]


def figure(what: str, healed: list[Healed], limit_s: float) -> Figure:
    return measured(
        f"standstill after {what}", ours=[each.took_s for each in healed], other=[limit_s], unit="s", target=1.0
    )


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    with installed() as cluster:
        volume = SharedVolume(cluster, "default/bytes-checkpoints")
        volume.make()
        job = LiveJob(cluster, "bytes", volume.folder / "bytes.losses")
        apply_example(job)
        job.wait("a spare and two members that train", lambda: has_spare(job) and job.trained(), STARTS_WITHIN_S)
        publish("failover", losses(cluster, job, given.rounds))


if __name__ == "__main__":
    main()
