"""Lives side by side: each in a namespace, with an operator, a watchdog and nodes of its own."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from apiserver import ApiServer
from fake_kubelet import FakeKubelet
from fake_watchdog_for_operator import FakeOperatorWatchdog
from operator_rig import Cluster, OperatorProcess
from patience import patient

LIFE_S = patient(100.0)
LEASE_S = 3.0  # with a shorter one, so many operators on few cores lose it now and then


@dataclass(frozen=True)
class World:
    """Everything one life needs. Its operator is not started yet."""

    cluster: Cluster
    kubelet: FakeKubelet
    watchdog: FakeOperatorWatchdog
    operator: OperatorProcess


Life = Callable[[World], Awaitable[None]]


async def live_together(server: ApiServer, folder: Path, lives: Mapping[str, Life]) -> None:
    """All at the same time, by their names. Raises a group of those that failed, when all are over.

    Pytest's own failures and a cancelled life are no `Exception`, and failures all the same. One that does not end
    is cancelled, so that it tells where it stood.
    """

    failed: list[BaseException] = []

    async def one(name: str, life: Life) -> None:
        try:
            async with _world(server, folder / name) as world:
                await life(world)
        except BaseException as error:
            log = folder / name / "operator-one.log"
            error.add_note(f"in the life {name}, whose operator said:\n{log.read_text() if log.exists() else ''}")
            failed.append(error)  # what `gather` returns of a cancelled one does not say where it stood

    tasks = [asyncio.create_task(one(*each)) for each in lives.items()]
    _, late = await asyncio.wait(tasks, timeout=LIFE_S)
    for each in late:
        each.cancel(f"not over after {LIFE_S:.0f} s")
    await asyncio.gather(*tasks)
    if failed:
        raise BaseExceptionGroup(f"{len(failed)} of {len(lives)} lives failed", failed)


@asynccontextmanager
async def _world(server: ApiServer, folder: Path) -> AsyncIterator[World]:
    folder.mkdir()
    cluster = Cluster(server, await asyncio.to_thread(server.new_namespace))
    try:
        async with FakeOperatorWatchdog() as watchdog, FakeKubelet(server, cluster.namespace) as kubelet:
            operator = OperatorProcess(server, cluster.namespace, watchdog.endpoint, folder, lease_s=LEASE_S)
            try:
                yield World(cluster, kubelet, watchdog, operator)
            finally:
                await asyncio.to_thread(operator.stop)  # the other lives go on
    finally:
        await cluster.close()
