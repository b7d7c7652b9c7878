"""One look at one job, though something of it fails."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from operator_builders import NOW, OPTIONS, document, ended_pod, job_object, node, plan, pod, report

from holdfast.api.errors import HoldfastError, Unavailable
from holdfast.api.policy import Policy
from holdfast.operator.act.dryrun import DryRun
from holdfast.operator.act.statuswriter import EventRecorder
from holdfast.operator.controller import Controller, Trouble
from holdfast.operator.decide.action import Action, StartCheck, Submit
from holdfast.operator.kube.clusterview import ClusterView
from holdfast.operator.kube.objects import Job, text_of
from holdfast.operator.kube.writes import Writes
from holdfast.wire.kube.client import Request
from holdfast.wire.kube.reply import refusal


class OtherWriters:
    """An API server that takes everything but the status, as long as others write the job, too."""

    def __init__(self) -> None:
        self.others_write = True
        self.told: list[str] = []

    async def ask(self, request: Request, guard: Callable[[], None] | None = None) -> bytes:
        given = msgspec.json.decode(request.body or b"{}")
        if request.path.endswith("/events"):
            self.told.append(given["reason"])
        if request.path.endswith("/status") and self.others_write:
            raise refusal(409, b'{"reason": "Conflict"}')
        about = given.get("metadata", {}) | {"name": "gpt", "namespace": "research"}
        return msgspec.json.encode(given | {"metadata": about})


class DoneAtOnce:
    """Whatever is to be done is."""

    async def apply(self, job: Job, actions: Sequence[Action]) -> list[Any]:
        return []


class HealthyLine:
    """The watchdog wants two members."""

    plan, report = plan(), report()

    def heard_age_s(self) -> float:
        return 0.0

    def tell(self, seen: object) -> None:
        list(seen)  # type: ignore[call-overload]


async def test_what_was_done_is_told_though_the_status_cannot_be_written_and_nothing_is_told_twice() -> None:
    server, view = OtherWriters(), ClusterView(*(lambda name: None,) * 3)
    job = Job(job_object().metadata, msgspec.Raw(msgspec.json.encode(document()["spec"])))
    view.jobs.replace("", [job], view.jobs.begin_list(), "1")
    view.nodes.replace("", [node(f"n{each}") for each in range(3)], view.nodes.begin_list(), "1")
    view.pods.replace("", [pod(0), ended_pod(1)], view.pods.begin_list(), "1")
    writes = Writes(server, lambda: True)  # type: ignore[arg-type]
    recorder = EventRecorder(writes, "one", lambda: text_of(NOW))
    executor, dry_run = DoneAtOnce(), DryRun(writes, OPTIONS, lambda: 0.0)
    controller = Controller(view, writes, executor, recorder, dry_run, OPTIONS, lambda: NOW)  # type: ignore[arg-type]
    with pytest.raises(Trouble, match=r"status: .*409"):
        await controller.look(job, HealthyLine())  # type: ignore[arg-type]
    assert server.told == ["MemberReplaced"]
    server.others_write = False
    view.pods.replace("", [pod(0), ended_pod(1), pod(2)], view.pods.begin_list(), "1")
    await controller.look(job, HealthyLine())  # type: ignore[arg-type]
    assert server.told == ["MemberReplaced", "JobAccepted", "Running"]


async def test_a_job_that_runs_with_more_workers_than_gpus_is_looked_at_as_before() -> None:
    server, view = OtherWriters(), ClusterView(*(lambda name: None,) * 3)
    server.others_write = False
    one = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
    template = {"spec": {"containers": [{"name": "trainer", "image": "x", **one}]}}
    spec = document(template=template, processesPerNode=2)["spec"]
    job = Job(job_object().metadata, msgspec.Raw(msgspec.json.encode(spec)))
    view.jobs.replace("", [job], view.jobs.begin_list(), "1")
    view.nodes.replace("", [node(f"n{each}") for each in range(3)], view.nodes.begin_list(), "1")
    view.pods.replace("", [pod(0), pod(1)], view.pods.begin_list(), "1")
    writes = Writes(server, lambda: True)  # type: ignore[arg-type]
    recorder = EventRecorder(writes, "one", lambda: text_of(NOW))
    executor, dry_run = DoneAtOnce(), DryRun(writes, OPTIONS, lambda: 0.0)
    controller = Controller(view, writes, executor, recorder, dry_run, OPTIONS, lambda: NOW)  # type: ignore[arg-type]
    knows = HealthyLine()
    uid = job.metadata.uid
    policy = Policy("research/gpt", 2, 2, generation=1, uid=uid, processes_per_node=2)
    knows.report = msgspec.structs.replace(report(generation=1), policy=policy)
    await controller.look(job, knows)  # type: ignore[arg-type]
    assert "InvalidSpec" not in server.told
    await controller.look(job, HealthyLine())  # type: ignore[arg-type]
    assert "InvalidSpec" not in server.told, "a watchdog that says less than before takes nothing back"
    controller.forget("research/gpt")
    await controller.look(job, HealthyLine())  # type: ignore[arg-type]
    assert "InvalidSpec" in server.told, "of a job that nobody knows to run so"


class RefusesChecks:
    """Makes no checking pod, for the reason that is given; everything else is done at once."""

    def __init__(self) -> None:
        self.why: HoldfastError = Unavailable("the webhook does not answer")
        self.submitted: list[bool] = []

    async def apply(self, job: Job, actions: Sequence[Action]) -> list[Any]:
        self.submitted += [not each.policy.held for each in actions if isinstance(each, Submit)]
        return [(each, self.why) for each in actions if isinstance(each, StartCheck)]


@pytest.mark.parametrize(("why", "waits_s"), [(None, OPTIONS.check_s), (refusal(403, b"{}"), 0.0)])
async def test_a_checking_pod_that_is_refused_is_given_up_at_once_and_an_outage_after_its_time(
    why: HoldfastError | None, waits_s: float
) -> None:
    server, view, clock = OtherWriters(), ClusterView(*(lambda name: None,) * 3), [NOW]
    server.others_write = False
    spec = document(policyCheck="warn", faultPolicy={"heartbeat": {"lost": "9s"}})["spec"]
    job = Job(job_object(generation=2).metadata, msgspec.Raw(msgspec.json.encode(spec)))
    view.jobs.replace("", [job], view.jobs.begin_list(), "1")
    view.nodes.replace("", [node(f"n{each}") for each in range(3)], view.nodes.begin_list(), "1")
    writes, executor = Writes(server, lambda: True), RefusesChecks()  # type: ignore[arg-type]
    executor.why = why or executor.why
    options = msgspec.structs.replace(OPTIONS, check_image="operator:1")
    recorder, dry_run = EventRecorder(writes, "one", lambda: text_of(NOW)), DryRun(writes, options, lambda: 0.0)
    controller = Controller(view, writes, executor, recorder, dry_run, options, lambda: clock[0])  # type: ignore[arg-type]
    line = HealthyLine()
    line.report = msgspec.structs.replace(report(generation=1), policy=Policy("research/gpt", 1, 2, generation=1))
    for _ in range(2):
        with pytest.raises(Trouble, match="StartCheck"):
            await controller.look(job, line)  # type: ignore[arg-type]
        if not waits_s:
            break
    assert not any(executor.submitted)
    clock[0] += waits_s
    await controller.look(job, line)  # type: ignore[arg-type]
    assert executor.submitted[-1], "with warn it takes effect"
