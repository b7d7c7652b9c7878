"""What one job of 12,500 members costs the operator, on a real API server.

    make bench NAME=operator [ARGS="--members 1000"]

The file is not called operator.py: a script's folder comes first on the module path, and there it would hide the
standard library's module of that name.

The operator is its own process; the API server and etcd (its data in memory) share the machine's cores with it, so
its CPU is told beside every wall time. Counts and times of writes are from the API server's audit log. Everybody
here is an administrator, whom the API server's fairness does not slow down; no client has a rate limit of its own.
The bound is then the API server's CPU; the bare loop, with as many requests at once, shows where that is.
Kubelets, scheduler and watchdog are played.
"""

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from typing import Final

from figure import Figure, publish
from kube.acts import Play
from kube.audit import counted
from kube.cluster import Cluster, cluster
from kube.programs import Operator, Watchdog, run_peer
from kube.verdict import (
    Lists,
    Scale,
    Told,
    creation_figures,
    idle_figures,
    list_figures,
    loss_figures,
    storm_figures,
)

BEGAN_S: Final = time.monotonic()


async def list_pods(place: Cluster, scale: Scale) -> Lists:
    """In turn, each in a fresh process, over the pods of the bare client."""
    lists = Lists([], [], [])
    for number in range(scale.lists):
        for kind, into, times in (
            ("raw", lists.raw, scale.lists),
            ("ours", lists.ours, scale.lists),
            ("informer", lists.informer, scale.informers),
        ):
            if number < times:
                into.append(await run_peer(kind, place, scale.listed))
                say(f"list by {kind}", into[-1])
    return lists


async def play(scale: Scale) -> list[Figure]:
    """Everything, in an order in which each act leaves what the next one needs."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        async with cluster() as place, Watchdog() as watchdog:
            operator = Operator(place, watchdog.endpoint, Path(folder))
            bare = await run_peer("post", place, scale.listed)
            say("bare POST loop", bare)
            await place.start(await place.pods("bare"), "bare")
            figures = list_figures(await list_pods(place, scale), scale)
            await place.add_nodes(scale.nodes)
            say("nodes added", scale.nodes)
            try:
                await operator.begin(resync_s=300.0)
                return figures + await acts(Play(place, operator, watchdog, scale.members), bare, scale)
            finally:
                operator.stop()
                print(operator.log.read_text(), flush=True)


async def acts(stage: Play, bare: Told, scale: Scale) -> list[Figure]:
    creation = await stage.create()
    say("created", creation.span_s, creation.cpu_s, creation.peak_mb, counted(creation.writes))
    storm = await stage.settle_in()
    say("storm", storm.wall_s, storm.cpu_s, storm.looks, storm.bare_cpu_s, counted(storm.writes))
    one = await stage.lose(1)
    say("one lost", one.since_seen_s, one.since_plan_s, one.cpu_s, counted(one.writes))
    losses = []
    for _ in range(scale.losses):
        losses.append(await stage.lose(scale.lost))
        loss = losses[-1]
        say("lost", loss.since_seen_s, loss.since_plan_s, loss.cpu_s, counted(loss.writes))
    idle = await stage.restart(10)
    say("restart", idle.ready_s, idle.resident_mb, idle.look_cpu_s, counted(idle.restart_writes), idle.look_writes)
    progress = await stage.progress(20, 0.5)
    say("progress", counted(progress))
    return [
        *creation_figures(creation, bare, scale),
        *loss_figures(one, losses, scale),
        *storm_figures(storm, scale),
        *idle_figures(idle, progress, 20, scale),
    ]


def say(what: str, *seen: object) -> None:
    shown = (f"{each:.3f}" if isinstance(each, float) else str(each) for each in seen)
    print(f"{time.monotonic() - BEGAN_S:6.1f} s  {what}: {'; '.join(shown)}", flush=True)


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--members", type=int, default=12_500)
    parser.add_argument("--losses", type=int, default=5)
    parser.add_argument("--lists", type=int, default=5)
    parser.add_argument("--informers", type=int, default=2)
    given = parser.parse_args()
    lost = max(1, given.members // 100)
    scale = Scale(given.members, lost, given.losses, given.lists, given.informers)
    publish("operator", asyncio.run(play(scale)))


if __name__ == "__main__":
    main()
