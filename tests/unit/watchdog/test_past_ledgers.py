"""What a job had cost is told when the job itself is gone."""

import json
from collections.abc import Mapping

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from forgetful_store import MemoryStore

from holdfast.api.event import JobSubmitted, MemberJoined
from holdfast.api.ledger import Entry, LedgerReport, Row
from holdfast.api.policy import Policy
from holdfast.watchdog import brain
from holdfast.watchdog.senses import senses_for
from holdfast.watchdog.server import jobs
from holdfast.watchdog.server.answer import NotFound
from holdfast.watchdog.server.pastledgers import KEPT_OF_NAMESPACE, PastLedgers, name_of
from holdfast.watchdog.server.watchdog import WATCHDOG, Watchdog

JOB = "team/run"


def started(store: MemoryStore) -> Watchdog:
    made = Watchdog(store, brain=brain, senses_for=senses_for, fenced=lambda reason: None)
    made.start()
    return made


def begun(watchdog: Watchdog, uid: str = "") -> None:
    host = watchdog.host(JOB)
    host.demand(JobSubmitted(Policy(job=JOB, nodes_min=1, nodes_max=1, uid=uid)))
    host.demand(MemberJoined("m", "n", "b", "10.0.0.1", 1, (4000,), warm=True))


def request(watchdog: Watchdog, method: str, *, body: bytes = b"", job: str = JOB) -> web.Request:
    namespace, _, name = job.partition("/")
    app = web.Application()
    app[WATCHDOG] = watchdog
    match: Mapping[str, str] = {"namespace": namespace, "name": name}
    made = make_mocked_request(method, f"/v1/jobs/{job}", app=app, match_info=match)
    made._read_bytes = body
    return made


async def asked(watchdog: Watchdog, job: str = JOB) -> LedgerReport:
    answered = await jobs.ledger(request(watchdog, "GET", job=job))
    assert isinstance(answered.body, bytes)
    return msgspec.json.decode(answered.body, type=LedgerReport)


async def test_the_ledger_of_a_deleted_job_is_told_also_by_the_next_watchdog() -> None:
    store = MemoryStore()
    watchdog = started(store)
    begun(watchdog)
    before = await asked(watchdog)
    await jobs.forget(request(watchdog, "DELETE"))
    assert watchdog.known(JOB) is None
    assert JOB not in store.jobs()
    told = await asked(watchdog)
    assert told.gpu_us >= before.gpu_us > 0
    assert sum(each.gpu_us for each in told.entries) == told.gpu_us
    await jobs.forget(request(watchdog, "DELETE"))
    assert await asked(started(store)) == told
    with pytest.raises(NotFound, match="there is no job team/other"):
        await asked(watchdog, "team/other")


async def test_a_job_that_takes_the_name_of_another_has_a_ledger_of_its_own() -> None:
    watchdog = started(MemoryStore())
    begun(watchdog, "one")
    again = Policy(job=JOB, nodes_min=1, nodes_max=1, uid="two")
    await jobs.submit(request(watchdog, "POST", body=json.dumps(msgspec.to_builtins(again)).encode()))
    assert (await asked(watchdog)).entries == (), "the one that is there"
    watchdog.forget(JOB)
    assert (await asked(watchdog)).gpu_us > 0, "the new one held nothing, and takes nothing away"


def test_of_a_namespace_the_oldest_make_room() -> None:
    store = MemoryStore()
    kept = PastLedgers(store, store.claim())
    for number in range(KEPT_OF_NAMESPACE + 2):
        kept.keep(LedgerReport(f"team/{number}", float(number), 1, 0, (Entry(Row.LOADING, "earlier", 1),)))
    kept.keep(LedgerReport("other/0", 0.0, 1, 0, (Entry(Row.LOADING, "earlier", 1),)))
    assert kept.of("team/1") is None
    assert store.load(name_of("team/1")) is None
    found = kept.of("team/2")
    assert found is not None
    assert found.at == 2.0
