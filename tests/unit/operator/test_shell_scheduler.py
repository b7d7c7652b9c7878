"""One job that cannot be looked at costs the others nothing."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from patience import patient

from holdfast.api.errors import Fenced
from holdfast.operator.controller import Trouble
from holdfast.operator.kube.objects import Job, JobMetadata
from holdfast.operator.kube.worklist import Worklist
from holdfast.operator.metrics import Metrics
from holdfast.operator.scheduler import Scheduler
from holdfast.operator.watchdog import Watchdog


class Looks:
    """In the place of cluster and controller: looks at one job end as told to, at any other well."""

    acts = True

    def __init__(self, bad: str, ends: Exception) -> None:
        self.bad, self.ends = bad, ends
        self.at: list[str] = []
        self.enough = asyncio.Event()

    def job(self, key: str) -> Job:
        namespace, _, name = key.partition("/")
        return Job(JobMetadata(name, namespace, f"uid-of-{name}"))

    async def look(self, job: Job, line: object) -> None:
        name = job.metadata.name or ""
        self.at.append(name)
        if {"a", "c"} <= set(self.at) and self.at.count(self.bad) >= 2:
            self.enough.set()
        if name == self.bad:
            raise self.ends


def scheduler(looks: Looks, folder: Path) -> Scheduler:
    (folder / "token").write_text("token")
    watchdog = Watchdog("127.0.0.1:1", folder / "token")
    worklist = Worklist(asyncio.get_running_loop().time)
    made: Any = looks
    return Scheduler(made, worklist, made, watchdog, Metrics(), resync_s=300.0)


@pytest.mark.parametrize(
    ("ends", "counted"),
    [(ZeroDivisionError("a surprise"), "error"), (Trouble("the API server is away"), "trouble")],
)
async def test_a_look_that_fails_is_tried_again_and_the_other_jobs_are_looked_at(
    tmp_path: Path, ends: Exception, counted: str
) -> None:
    looks = Looks("b", ends)
    shell = scheduler(looks, tmp_path)
    for key in ("ml/a", "ml/b", "ml/c"):
        shell.worklist.add(key)
    running = asyncio.create_task(shell.run())
    try:
        async with asyncio.timeout(patient(10.0)):
            await looks.enough.wait()
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await shell.watchdog.close()
    assert (looks.at.count("a"), looks.at.count("c")) == (1, 1), "a job that went well is not looked at again"
    assert f'holdfast_operator_reconcile_total{{result="{counted}"}}' in shell.metrics.text().decode()


async def test_an_operator_that_was_overtaken_looks_at_nothing_more(tmp_path: Path) -> None:
    looks = Looks("b", Fenced("another operator leads"))
    shell = scheduler(looks, tmp_path)
    shell.worklist.add("ml/b")
    try:
        async with asyncio.timeout(patient(10.0)):
            with pytest.raises(Fenced):
                await shell.run()
    finally:
        await shell.watchdog.close()
    assert looks.at == ["b"]
