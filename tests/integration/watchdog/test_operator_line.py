"""The operator's line: plans and reports out, what it sees in, and planned changes down to a launcher."""

import asyncio
from collections.abc import Callable

import aiohttp
import msgspec
from forgetful_store import MemoryStore
from patience import patient
from peers import INGEST_TOKEN, JOB, TO_LAUNCHER, TOKEN, LauncherPeer, Rig, bearer, join, policy_of, rigged

from holdfast.api.event import MemberDeparting, NodeChanged, PodChanged
from holdfast.api.membership import CheckpointCommitted, Departing, Refused, SaveWanted, WorkerExited
from holdfast.api.nodecondition import FaultPart, Meaning, NodeCondition
from holdfast.api.plan import (
    JobReport,
    NodeObserved,
    NodeState,
    OperatorHello,
    Plan,
    PodObserved,
    PodState,
    ToOperator,
)
from holdfast.api.rankrecord import Phase
from holdfast.api.round import Idle, Seat
from holdfast.api.status import JobPhase
from holdfast.api.telemetry import AgentHello, NodeReport, ProcessState, RankSample
from holdfast.api.xid import Recovery
from holdfast.watchdog.senses import senses_for
from holdfast.watchdog.server.watchdog import BROUGHT_MAX

SHOWN: msgspec.msgpack.Decoder[ToOperator] = msgspec.msgpack.Decoder(ToOperator)


class OperatorPeer:
    """An operator as the watchdog sees it."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig

    async def connect(self, *, reached: int | None = None) -> "OperatorPeer":
        self.socket = await self._rig.connect("/v1/operator")
        await self.say(OperatorHello(JOB, reached))
        return self

    async def say(self, message: object) -> None:
        await self.socket.send_bytes(msgspec.msgpack.encode(message))

    async def plan(self, accepted: Callable[[Plan], bool]) -> Plan:
        return await self._until(Plan, accepted)

    async def report(self, accepted: Callable[[JobReport], bool]) -> JobReport:
        return await self._until(JobReport, accepted)

    async def _until(self, kind, accepted):  # type: ignore[no-untyped-def]
        async with asyncio.timeout(patient(5)):
            while True:
                shown = SHOWN.decode((await self.socket.receive()).data)
                if isinstance(shown, kind) and accepted(shown):
                    return shown


async def trains(rig: Rig, launcher: LauncherPeer, *, commit: int) -> int:
    """The launcher's round makes its first step and commits a checkpoint; its number."""
    shown = await launcher.enter()
    agent = await rig.connect("/v1/agent", token=INGEST_TOKEN)
    await agent.send_bytes(msgspec.msgpack.encode(AgentHello(node="node-m1", boot="b", job=JOB)))
    rank = RankSample(
        rank=0,
        round=shown.number,
        process=ProcessState.RUNNING,
        phase=Phase.IDLE,
        step=commit,
        progress_age_s=0.0,
        phase_age_s=0.0,
    )
    report = NodeReport(node="node-m1", boot="b", sequence=1, ranks=(rank,))
    await agent.send_bytes(msgspec.msgpack.encode(report))
    await rig.until(f"/v1/jobs/{JOB}/status", lambda body: body["phase"] == "Running")
    await launcher.say(CheckpointCommitted(shown.number, commit, "/ckpt"))
    await rig.until(f"/v1/jobs/{JOB}/status", lambda body: body["last_checkpoint"] is not None)
    return shown.number


async def test_the_operator_is_shown_the_plan_and_its_changes() -> None:
    async with rigged() as rig:
        await rig.submit(policy_of(nodes=1))
        operator = await OperatorPeer(rig).connect()
        assert (await operator.plan(lambda plan: True)).members == 1
        await rig.submit(policy_of(nodes=2))
        assert (await operator.plan(lambda plan: True)).members == 2


async def test_what_the_operator_sees_is_journaled() -> None:
    store = MemoryStore()
    async with rigged(store) as rig:
        await rig.submit(policy_of(nodes=1))
        operator = await OperatorPeer(rig).connect()
        await operator.say(NodeObserved("n1", NodeState.DRAINING, "cordoned"))
        await operator.say(PodObserved("gpt-0", "n1", PodState.PENDING, "no room"))
        await rig.until(f"/v1/jobs/{JOB}/journal", lambda body: body["lines"][-1]["event"]["type"] == "PodChanged")
        seen = [line.event for line in store.tail(JOB, 0)][-2:]
        assert seen == [
            NodeChanged("n1", NodeState.DRAINING, "cordoned"),
            PodChanged("gpt-0", "n1", PodState.PENDING, "no room"),
        ]


async def test_a_node_is_left_for_what_others_say_and_comes_back_when_it_is_over_or_repaired() -> None:
    async with rigged(senses=senses_for) as rig:
        await rig.submit(policy_of(nodes=1, spares=1))
        await rig.launcher("m1")
        await rig.launcher("m2")
        operator = await OperatorPeer(rig).connect()
        said = NodeCondition("KernelDeadlock", Meaning.EVICT, FaultPart.KERNEL, "DockerHung", "it hangs", "10:00")
        sick, well = "node-m2", NodeObserved("node-m2", NodeState.READY)
        await operator.say(msgspec.structs.replace(well, conditions=(said,)))
        plan = await operator.plan(lambda plan: bool(plan.cordon))
        assert [(order.node, order.remedy) for order in plan.cordon] == [(sick, Recovery.REBOOT_NODE)]
        await operator.say(well)
        plan = await operator.plan(lambda plan: plan.returned == (sick,))
        assert plan.avoid == ()
        again = msgspec.structs.replace(said, since="10:07")
        await operator.say(msgspec.structs.replace(well, conditions=(again,)))
        (order,) = (await operator.plan(lambda plan: bool(plan.cordon))).cordon
        assert order.incident is not None
        repaired = msgspec.structs.replace(well, conditions=(again,), remediated=order.incident)
        await operator.say(repaired)
        assert (await operator.plan(lambda plan: plan.returned == (sick,))).cordon == ()


async def test_the_report_tells_of_the_job_its_incidents_and_its_generation() -> None:
    async with rigged() as rig:
        operator = await OperatorPeer(rig).connect()
        assert (await operator.report(lambda report: True)).generation is None
        await rig.submit(policy_of(nodes=1, uid="u-1", generation=3))
        report = await operator.report(lambda report: report.generation == 3)
        assert (report.uid, report.status.phase, report.trouble) == ("u-1", JobPhase.PENDING, None)
        launcher = await rig.launcher("m1")
        shown = await launcher.enter()
        await launcher.say(WorkerExited(shown.number, 0, age_s=0.0, signal=9, error="Killed"))
        report = await operator.report(lambda report: bool(report.incidents))
        assert report.incidents[0].cause == "signal 9"


async def test_a_round_that_the_store_does_not_know_stops_the_job_before_a_plan_is_shown() -> None:
    async with rigged() as rig:
        await rig.submit(policy_of(nodes=1))
        launcher = await rig.launcher("m1")
        number = await trains(rig, launcher, commit=5)
        told = await OperatorPeer(rig).connect(reached=number)
        assert (await told.report(lambda report: True)).trouble is None
        knows_more = await OperatorPeer(rig).connect(reached=number + 1)
        first = SHOWN.decode((await knows_more.socket.receive()).data)
        assert isinstance(first, JobReport)
        assert first.generation is None
        assert f"TrainingJob knows number {number + 1}, and the newest in it is {number}" in str(first.trouble)
        # Whoever was there before hears of it at once.
        assert await told.report(lambda report: report.trouble == first.trouble)


async def test_the_round_of_a_job_that_the_store_does_not_know_at_all_stops_nothing() -> None:
    async with rigged() as rig:
        operator = await OperatorPeer(rig).connect(reached=41)
        assert (await operator.report(lambda report: True)).trouble is None
        await rig.submit(policy_of(nodes=1))
        assert (await operator.plan(lambda plan: True)).members == 1


async def test_a_launcher_that_was_shown_more_than_the_store_knows_stops_the_job_and_trains_on() -> None:
    async with rigged() as rig:
        await rig.submit(policy_of(nodes=1))
        # Left over from an earlier job of this name: numbers go on from there.
        earlier = LauncherPeer(await rig.connect("/v1/member", token=INGEST_TOKEN), "m1")
        await earlier.say(join("m1", shown=40))
        number = (await earlier.enter(after=40)).number
        again = LauncherPeer(await rig.connect("/v1/member", token=INGEST_TOKEN), "m1")
        await again.say(join("m1", held_round=number, shown=number))
        assert (await again.shown(Seat)).number == number
        knows_more = LauncherPeer(await rig.connect("/v1/member", token=INGEST_TOKEN), "m2")
        await knows_more.say(join("m2", held_round=number + 1, shown=number + 1))
        told = await rig.until(f"/v1/jobs/{JOB}/status", lambda body: "older copy" in body["reason"])
        assert f"launcher m2 knows number {number + 1}" in told["reason"]
        assert not again.socket.closed
        assert not knows_more.socket.closed


async def test_a_suspension_asks_for_a_checkpoint_also_of_who_reconnects_then_stops_everything() -> None:
    async with rigged() as rig:
        await rig.submit(policy_of(nodes=1, generation=1))
        launcher = await rig.launcher("m1")
        number = await trains(rig, launcher, commit=5)
        operator = await OperatorPeer(rig).connect()
        await rig.submit(policy_of(nodes=1, generation=2, suspend=True))
        wanted = await launcher.shown(SaveWanted)
        assert wanted.round == number
        again = await rig.launcher("m1", held_round=number)
        assert await again.shown(SaveWanted) == wanted
        await again.say(CheckpointCommitted(number, 7, "/ckpt", wanted.number))
        await again.shown(Idle)
        plan = await operator.plan(lambda plan: plan.members == 0)
        assert plan.spares == 0
        report = await operator.report(lambda report: report.status.phase is JobPhase.SUSPENDED)
        assert report.status.last_checkpoint is not None
        assert report.status.last_checkpoint.step == 7


async def test_a_launcher_that_was_told_to_end_is_heard() -> None:
    store = MemoryStore()
    async with rigged(store) as rig:
        await rig.submit(policy_of(nodes=1))
        launcher = await rig.launcher("m1")
        await launcher.enter()
        await launcher.say(Departing("SIGTERM", 25.0))
        await rig.until(
            f"/v1/jobs/{JOB}/journal", lambda body: body["lines"][-1]["event"]["type"] == "MemberDeparting"
        )
        assert [line.event for line in store.tail(JOB, 0)][-1] == MemberDeparting("m1", "SIGTERM", 25.0)


async def test_a_job_that_is_forgotten_leaves_nothing_and_sends_everybody_away() -> None:
    store = MemoryStore()
    async with rigged(store) as rig:
        await rig.submit(policy_of(nodes=1))
        launcher = await rig.launcher("m1")
        await launcher.enter()
        for _ in range(2):
            async with rig.http.delete(rig.url(f"/v1/jobs/{JOB}"), headers=bearer(TOKEN)) as response:
                assert response.status == 204
        assert (await launcher.ended())[1] == f"job {JOB} is gone"
        assert (await rig.get(f"/v1/jobs/{JOB}/status"))[0] == 404
        assert store.jobs() == ()
        assert (await rig.submit(policy_of(nodes=1)))["phase"] == "Pending"


async def test_only_who_operates_may_forget_a_job() -> None:
    async with rigged() as rig:
        await rig.submit(policy_of(nodes=1))
        async with rig.http.delete(rig.url(f"/v1/jobs/{JOB}"), headers=bearer(INGEST_TOKEN)) as response:
            assert response.status == 403
        assert (await rig.status())["phase"] == "Pending"


async def refusal_of(rig: Rig, job: str) -> str:
    """What a launcher is told that joins this job; empty when it is let in."""
    socket = await rig.connect("/v1/member")
    await socket.send_bytes(msgspec.msgpack.encode(join("m1", job=job, nodes=(1, 1))))
    answer = await socket.receive()
    await socket.close()
    if answer.type is not aiohttp.WSMsgType.BINARY:
        return ""
    shown = TO_LAUNCHER.decode(answer.data)
    return shown.reason if isinstance(shown, Refused) else ""


async def test_who_goes_on_calling_brings_no_deleted_job_back() -> None:
    store = MemoryStore()
    async with rigged(store) as rig:
        await rig.submit(policy_of(nodes=1))
        async with rig.http.delete(rig.url(f"/v1/jobs/{JOB}"), headers=bearer(TOKEN)) as response:
            assert response.status == 204
        assert await refusal_of(rig, JOB) == f"job {JOB} was deleted; submit it to run it again"
        agent = await rig.connect("/v1/agent")
        await agent.send_bytes(msgspec.msgpack.encode(AgentHello(node="n1", boot="b", job=JOB)))
        assert (await agent.receive()).type is aiohttp.WSMsgType.CLOSE
        assert store.jobs() == ()
        await rig.submit(policy_of(nodes=1))
        assert await refusal_of(rig, JOB) == ""


async def test_a_namespace_invents_few_jobs_and_takes_none_from_others() -> None:
    store = MemoryStore()
    async with rigged(store) as rig:
        assert [await refusal_of(rig, f"noisy/job-{number}") for number in range(BROUGHT_MAX)] == [
            ""
        ] * BROUGHT_MAX
        assert "was not submitted, and namespace noisy has 16 such jobs" in await refusal_of(rig, "noisy/one-more")
        assert await refusal_of(rig, "quiet/job") == ""
        await rig.submit(msgspec.structs.replace(policy_of(nodes=1), job="noisy/submitted", uid="a"))
        assert await refusal_of(rig, "noisy/submitted") == ""
        assert "noisy/one-more" not in store.jobs()
