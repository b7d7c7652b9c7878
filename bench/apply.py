"""How long it takes from `kubectl apply` to the first step, where images are on the nodes already.

    python bench/apply.py [--runs 5]

On the cluster of the tests (four nodes on this machine, their cores shared) with the chart installed, the example
is applied, trained and deleted again and again. The first run warms what pods share and counts for nothing.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Final

from figure import Figure, measured, publish

TESTS: Final = Path(__file__).parents[1] / "tests"
# At the end: nothing there may hide anything else.
sys.path += [str(TESTS / "servers"), str(TESTS / "cluster")]

from cluster import Cluster  # noqa: E402  from the tests' folder, which is on the path only now
from helmchart import HelmChart  # noqa: E402
from holdfast_images import holdfast_archives  # noqa: E402
from installation import NAMESPACE, values  # noqa: E402
from live_job import LiveJob, apply_example  # noqa: E402
from shared_volume import SharedVolume  # noqa: E402

LIMIT_S: Final = 30.0
PATIENCE_S: Final = 300.0
LOOK_S: Final = 0.05


@contextmanager
def installed() -> Iterator[Cluster]:
    """A cluster with Holdfast on it."""
    with Cluster(archives=holdfast_archives()) as cluster:
        volumes = [SharedVolume(cluster, f"holdfast/data-holdfast-redis-{number}") for number in range(3)]
        for volume in volumes:
            volume.make()
        HelmChart(cluster.server.admin_kubeconfig(), NAMESPACE).install(values(), ready_within_s=600)
        yield cluster


def first_step_s(cluster: Cluster) -> tuple[float, float]:
    """Seconds from apply to the first step, and of them those after the last launcher's container was started."""
    volume = SharedVolume(cluster, "default/bytes-checkpoints")
    volume.make()
    job = LiveJob(cluster, "bytes", volume.folder / "bytes.losses")
    began = time.monotonic()
    apply_example(job)
    while not job.trained():
        if time.monotonic() - began > PATIENCE_S:
            raise SystemExit(job.describe())
        time.sleep(LOOK_S)
    took_s, now = time.monotonic() - began, datetime.now().astimezone()
    since_s = min((now - started).total_seconds() for started in _started(job))
    job.kubectl("delete", "tj", job.name, "--wait=true", f"--timeout={PATIENCE_S:.0f}s")
    cluster.wait("pods to go", lambda: not job.pods(), PATIENCE_S)
    volume.remove()
    return took_s, since_s


def _started(job: LiveJob) -> Iterator[datetime]:
    for pod in job.pods().values():
        for container in pod["status"].get("containerStatuses", ()):
            running = container["state"].get("running")
            if running:
                yield datetime.fromisoformat(running["startedAt"])


def figures(runs: int) -> list[Figure]:
    with installed() as cluster:
        first_step_s(cluster)
        took = []
        for _ in range(runs):
            took.append(first_step_s(cluster))
            print(json.dumps({"first step, s": took[-1][0], "since the last launcher started, s": took[-1][1]}))
    return [
        measured(
            "kubectl apply to the first step", ours=[t for t, _ in took], other=[LIMIT_S], unit="s", target=1.0
        ),
        measured(
            "of them after the launchers' start", ours=[s for _, s in took], other=[LIMIT_S], unit="s", target=1.0
        ),
    ]


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=5)
    publish("apply", figures(parser.parse_args().runs))


if __name__ == "__main__":
    main()
