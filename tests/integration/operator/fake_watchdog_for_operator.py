"""A watchdog that decides only what a test tells it: it takes jobs, shows plans and reports, and remembers."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

import msgspec
from aiohttp import WSMsgType, web
from patience import patient
from server_process import free_port

from holdfast.api.intervention import InterventionOutcome, InterventionRequest, InterventionState
from holdfast.api.plan import (
    FromOperator,
    JobReport,
    NodeObserved,
    OperatorHello,
    Plan,
    PodObserved,
    PodState,
    ToOperator,
)
from holdfast.api.policy import Policy
from holdfast.api.status import JobPhase, JobStatus, Membership

TOKEN = "operator-token-of-a-test"
FROM_OPERATOR: msgspec.msgpack.Decoder[FromOperator] = msgspec.msgpack.Decoder(FromOperator)


@dataclass
class FakeJob:
    """One job as this watchdog has it. `script` overrides fields of the plan, `phase` the one that follows."""

    name: str
    policy: Policy | None = None
    phase: JobPhase | None = None
    script: dict[str, Any] = field(default_factory=dict)
    number: int = 0
    submissions: int = 0
    nodes: dict[str, NodeObserved] = field(default_factory=dict)
    pods: dict[str, PodObserved] = field(default_factory=dict)
    lines: list[web.WebSocketResponse] = field(default_factory=list)

    def plan(self) -> Plan:
        policy = self.policy
        still = policy is None or policy.suspend or self.phase in (JobPhase.SUCCEEDED, JobPhase.FAILED)
        members, spares = (0, 0) if still or policy is None else (policy.nodes_max, policy.spares)
        plan = Plan(self.name, self.number, members, spares)
        return msgspec.structs.replace(plan, **self.script)

    def report(self) -> JobReport:
        policy = self.policy
        generation, uid = (None, "") if policy is None else (policy.generation, policy.uid)
        return JobReport(self.status(), generation, uid, policy=policy)

    def status(self) -> JobStatus:
        suspended = self.policy is not None and self.policy.suspend
        phase = self.phase or (JobPhase.SUSPENDED if suspended else JobPhase.RUNNING)
        wanted = self.policy.nodes_max if self.policy else 0
        return JobStatus(
            job=self.name,
            phase=phase,
            reason="as the test says",
            round=1,
            members=Membership(wanted, wanted, 0),
            world_size=wanted,
            step=1,
            loss=None,
            step_time_s=None,
            restarts=0,
            evictions=0,
            incidents_open=0,
            incidents_total=0,
            last_checkpoint=None,
            avoided_nodes=(),
            now=0.0,
        )


class FakeOperatorWatchdog:
    """`async with FakeOperatorWatchdog() as watchdog`; the operator finds it at `endpoint`."""

    def __init__(self) -> None:
        self.jobs: dict[str, FakeJob] = {}
        self.forgotten: list[str] = []
        self.interventions: list[InterventionRequest] = []
        self.answer_intervention = InterventionState.DONE
        self.port = free_port()  # kept while it is away: whoever asks for it meanwhile could be given it

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Listen; again on the same port after `close`."""
        app = web.Application()
        app.router.add_get("/v1/operator", self._serve)
        app.router.add_post("/v1/jobs", self._submit)
        app.router.add_delete("/v1/jobs/{namespace}/{name}", self._forget)
        app.router.add_post("/v1/jobs/{namespace}/{name}/interventions", self._intervene)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()

    async def close(self) -> None:
        """Go away; jobs are remembered."""
        for job in self.jobs.values():
            for line in tuple(job.lines):
                await line.close()
        await self._runner.cleanup()

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    def job(self, name: str) -> FakeJob:
        return self.jobs.setdefault(name, FakeJob(name))

    async def script(self, name: str, *, phase: JobPhase | None = None, **plan: Any) -> None:
        """Change what the plan says and show it; `phase` None keeps the one there is."""
        job = self.job(name)
        job.script |= plan
        job.phase = phase or job.phase
        await self._show(job)

    async def until(self, what: str, holds: Callable[[], bool], within_s: float = 20.0) -> None:
        """A KeyError counts as: that is not known yet."""

        def is_so() -> bool:
            try:
                return holds()
            except KeyError:
                return False

        deadline = asyncio.get_running_loop().time() + patient(within_s)
        while not is_so():
            if asyncio.get_running_loop().time() > deadline:
                raise AssertionError(f"not {what} within {within_s} s; jobs are {self.jobs}")
            await asyncio.sleep(0.02)

    async def until_seen_running(self, name: str, *members: str, within_s: float = 20.0) -> None:
        """Until the operator says that these pods run. What it saw of them before, it acts on no more."""

        def so() -> bool:
            pods = self.jobs[name].pods
            return all(pods[each].state is PodState.RUNNING for each in members)

        await self.until(f"{members} seen running", so, within_s)

    async def _show(self, job: FakeJob) -> None:
        job.number += 1
        for line in tuple(job.lines):
            with suppress(ConnectionError):  # it will be shown all of it on its next line
                for message in (job.plan(), job.report()):
                    await line.send_bytes(_encode(message))

    async def _submit(self, request: web.Request) -> web.Response:
        if refused := _unauthorised(request):
            return refused
        policy = msgspec.json.decode(await request.read(), type=Policy)
        job = self.job(policy.job)
        if job.policy is not None and job.policy.uid != policy.uid:
            job.phase, job.script = None, {}
        job.submissions += 1
        job.policy = policy
        await self._show(job)
        return web.Response(body=msgspec.json.encode(job.status()), content_type="application/json")

    async def _forget(self, request: web.Request) -> web.Response:
        if refused := _unauthorised(request):
            return refused
        name = f"{request.match_info['namespace']}/{request.match_info['name']}"
        known = self.jobs.get(name)
        if known is None or known.policy is None:
            return web.json_response({"error": "no such job"}, status=404)
        self.forgotten.append(name)
        known.policy, known.phase, known.script = None, None, {}
        await self._show(known)
        return web.Response(status=204)

    async def _intervene(self, request: web.Request) -> web.Response:
        if refused := _unauthorised(request):
            return refused
        asked = msgspec.json.decode(await request.read(), type=InterventionRequest)
        if asked.job not in self.jobs:
            return web.json_response({"error": f"there is no job {asked.job}"}, status=404)
        if asked.id not in {each.id for each in self.interventions}:
            self.interventions.append(asked)
        outcome = InterventionOutcome(asked.id, self.answer_intervention, "as the test says")
        code = 202 if outcome.state is InterventionState.PENDING else 200
        return web.Response(body=msgspec.json.encode(outcome), status=code, content_type="application/json")

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        if refused := _unauthorised(request):
            return refused
        line = web.WebSocketResponse(heartbeat=5.0)
        await line.prepare(request)
        first = await line.receive()
        if first.type is not WSMsgType.BINARY:
            return line  # an operator that dies before it has said who it is
        hello = FROM_OPERATOR.decode(first.data)
        assert isinstance(hello, OperatorHello)
        job = self.job(hello.job)
        job.lines.append(line)
        try:
            # As the real one: nothing is planned of a job that was never submitted.
            if job.policy is not None:
                await line.send_bytes(_encode(job.plan()))
            await line.send_bytes(_encode(job.report()))
            async for message in line:
                if message.type is WSMsgType.BINARY:
                    _hear(job, FROM_OPERATOR.decode(message.data))
        finally:
            job.lines.remove(line)
        return line


def _hear(job: FakeJob, message: FromOperator) -> None:
    match message:
        case NodeObserved():
            job.nodes[message.node] = message
        case PodObserved():
            job.pods[message.member] = message


def _unauthorised(request: web.Request) -> web.Response | None:
    if request.headers.get("Authorization") == f"Bearer {TOKEN}":
        return None
    return web.json_response({"error": "who are you?"}, status=401)


def _encode(message: ToOperator) -> bytes:
    return msgspec.msgpack.encode(message)
