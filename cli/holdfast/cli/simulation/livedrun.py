"""Runs that are lived through, each by itself: here, on all cores, or in a Dask or Ray cluster that exists."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import click
import msgspec

from holdfast.api.errors import InvalidInput, Problem, Unavailable
from holdfast.simulator.outcome import Outcome
from holdfast.simulator.scenario import Scenario

Live = Callable[[Scenario, int], Outcome]


class Task(msgspec.Struct, frozen=True):
    """One run: which of the policies that are tried, and its seed."""

    policy: int
    scenario: Scenario
    seed: int


class Done(msgspec.Struct, frozen=True):
    """A task's outcome."""

    policy: int
    outcome: Outcome


Where = Callable[[Live, Sequence[Task]], Iterator[Done]]
"""Lives through the tasks and gives each outcome when it is there, in any order."""


def where(cluster: str | None, workers: int | None) -> Where:
    """The place that the flags name. Raises InvalidInput."""
    if cluster is None:
        return Cores(workers if workers is not None else len(os.sched_getaffinity(0)))
    if workers is not None:
        raise InvalidInput(Problem("--workers", workers, "leave it out; a cluster has workers of its own"))
    scheme, _, address = cluster.partition("://")
    if scheme == "dask" and address:
        return DaskCluster(f"tcp://{address}")
    if scheme == "ray" and address:
        return RayCluster(cluster if address != "auto" else "auto")
    fix = "give dask://HOST:PORT, ray://HOST:PORT, or ray://auto on a machine of the cluster"
    raise InvalidInput(Problem("--cluster", cluster, fix))


class Cores:
    """Processes of this machine; with one of them, or one task, this process."""

    def __init__(self, workers: int) -> None:
        self._workers = workers

    def __call__(self, live: Live, tasks: Sequence[Task]) -> Iterator[Done]:
        """Raises Unavailable when a process ends unasked, for want of memory as a rule."""
        if self._workers == 1 or len(tasks) == 1:
            for task in tasks:
                yield Done(task.policy, live(task.scenario, task.seed))
            return
        before = set(multiprocessing.active_children())
        pool = ProcessPoolExecutor(
            min(self._workers, len(tasks)), multiprocessing.get_context("spawn"), initializer=_leave_ctrl_c
        )
        futures: dict[Future[Outcome], int] = {}
        try:
            futures = {pool.submit(live, task.scenario, task.seed): task.policy for task in tasks}
            for future in as_completed(futures):
                yield Done(futures.pop(future), future.result())
        except BrokenProcessPool:
            fix = "a process that lived through a run ended; with fewer --workers less memory is needed"
            raise Unavailable(fix) from None
        finally:
            if futures:  # nobody waits for these any more
                pool.shutdown(wait=False, cancel_futures=True)
                for child in set(multiprocessing.active_children()) - before:
                    child.terminate()
            pool.shutdown()


class Gathered(msgspec.Struct, frozen=True):
    """The outcomes of each policy, by seed. `is_whole`: nobody broke it off before the last."""

    outcomes: tuple[tuple[Outcome, ...], ...]
    is_whole: bool


def gathered(where: Where, live: Live, scenarios: Sequence[Scenario], seeds: Sequence[int]) -> Gathered:
    """Live through every scenario with every seed; what is done by a Ctrl-C is kept. Raises as `where` does.

    Seed by seed, so that what is broken off has as many of each policy as can be.
    """
    tasks = [Task(place, scenario, seed) for seed in seeds for place, scenario in enumerate(scenarios)]
    kept: list[list[Outcome]] = [[] for _ in scenarios]
    progress = sys.stderr.isatty()
    count = 0
    try:
        for done in where(live, tasks):
            kept[done.policy].append(done.outcome)
            count += 1
            if progress:
                click.echo(f"\r{count} of {len(tasks)} runs", err=True, nl=count == len(tasks))
    except KeyboardInterrupt:
        pass
    ordered = tuple(tuple(sorted(each, key=lambda outcome: outcome.seed)) for each in kept)
    return Gathered(ordered, count == len(tasks))


def _leave_ctrl_c() -> None:
    """The parent hears it as well, and ends the rest."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class DaskCluster:
    """Workers of a Dask cluster, which have Holdfast installed."""

    def __init__(self, address: str) -> None:
        self._address = address

    def __call__(self, live: Live, tasks: Sequence[Task]) -> Iterator[Done]:
        """Raises Unavailable."""
        try:
            from distributed import Client
            from distributed import as_completed as completed
        except ModuleNotFoundError as error:
            raise Unavailable(f"--cluster dask:// needs {error.name}: pip install distributed") from None
        try:
            client: Client = Client(self._address, timeout="10s")
        except (OSError, TimeoutError) as error:
            raise Unavailable(f"no Dask scheduler answers at {self._address}: {error}") from None
        with client:
            futures = [client.submit(live, task.scenario, task.seed, pure=False) for task in tasks]
            of = {future.key: task.policy for future, task in zip(futures, tasks, strict=True)}
            try:
                for future in completed(futures):
                    yield Done(of[future.key], future.result())
            finally:
                client.cancel(futures)


class RayCluster:
    """Workers of a Ray cluster, which have Holdfast installed."""

    def __init__(self, address: str) -> None:
        self._address = address

    def __call__(self, live: Live, tasks: Sequence[Task]) -> Iterator[Done]:
        """Raises Unavailable."""
        try:
            import ray
        except ModuleNotFoundError as error:
            raise Unavailable(f"--cluster ray:// needs {error.name}: pip install 'ray[client]'") from None
        try:
            ray.init(address=self._address, log_to_driver=False)
        except ConnectionError as error:
            raise Unavailable(f"no Ray cluster answers at {self._address}: {error}") from None
        try:
            remote: Any = ray.remote(live)
            waiting = {remote.remote(task.scenario, task.seed): task.policy for task in tasks}
            while waiting:
                ready, _ = ray.wait(list(waiting))
                for each in ready:
                    yield Done(waiting.pop(each), ray.get(each))
        finally:
            ray.shutdown()
