"""Around everything that the executor does there is a place to die at."""

from collections.abc import Callable

import msgspec
import pytest
from operator_builders import NOW, document, job_object, node

from holdfast.api.trainingjob import policy_of, read_trainingjob
from holdfast.operator.act import faultpoint
from holdfast.operator.act.executor import Executor
from holdfast.operator.act.statuswriter import EventRecorder
from holdfast.operator.decide.action import (
    Action,
    Apply,
    AskForRemediation,
    ChangeWorkload,
    Cordon,
    CreatePod,
    Delete,
    DeleteJob,
    DeletePod,
    EndCheck,
    Forget,
    KubeEvent,
    RecordLast,
    SetFinalizer,
    SetNodeHealth,
    Submit,
    Uncordon,
)
from holdfast.operator.decide.belongings import SERVICE, service_of
from holdfast.operator.decide.inqueue import WORKLOAD
from holdfast.operator.kube.clusterview import ClusterView
from holdfast.operator.kube.kueue import APIS, workloads
from holdfast.operator.kube.objects import SERVICES, text_of
from holdfast.operator.kube.writes import Writes
from holdfast.wire.kube.client import Request

JOB = job_object()
MANIFEST = {"kind": "Pod", "metadata": {"name": "gpt-0", "namespace": "research"}}
AROUND: dict[str, Action] = {
    "pod-created": CreatePod(MANIFEST),
    "pod-deleted": DeletePod("gpt-0", "uid", "no more"),
    "apply": Apply(service_of(JOB.metadata)),
    "owned-deleted": Delete(SERVICE, "gpt"),
    "cordon": Cordon("n1", "XID 79", "inc-1"),
    "uncordon": Uncordon("n1"),
    "node-health": SetNodeHealth("n1", "False", "Faulty", "XID 79", text_of(NOW)),
    "remediation": AskForRemediation({"metadata": {"name": "n1"}, "spec": {"action": "Reboot"}}),
    "last-event": RecordLast(KubeEvent("WoundUp", "nothing is left")),
    "finalizer": SetFinalizer(held=True),
    "release": SetFinalizer(held=False),
    "job-deleted": DeleteJob(),
    "submit": Submit(policy_of(read_trainingjob(document()))),
    "forget": Forget(),
    "check": EndCheck("gpt-abc-check", "uid"),
    "workload": ChangeWorkload("trainingjob-gpt", "uid", "7", {"conditions": []}),
}


class Died(BaseException):
    """In place of the end of the process."""


class Obedient:
    """An API server and a watchdog that do everything, and count it."""

    def __init__(self) -> None:
        self.asked = 0

    async def ask(self, request: Request, guard: Callable[[], None] | None = None) -> bytes:
        self.asked += 1
        owner = {"uid": JOB.metadata.uid, "controller": True}
        metadata = {"name": "gpt", "namespace": "research", "resourceVersion": "7", "ownerReferences": [owner]}
        return msgspec.json.encode({"metadata": metadata, "spec": {}})

    async def submit(self, policy: object) -> None:
        self.asked += 1

    async def forget(self, job: str) -> None:
        self.asked += 1


async def die(monkeypatch: pytest.MonkeyPatch, point: str, action: Action) -> int:
    """How much was asked for when it died at that point."""

    def end(code: int) -> None:
        raise Died

    monkeypatch.setattr("os._exit", end)
    server, view = Obedient(), ClusterView(*(lambda name: None,) * 3)
    view.nodes.replace("", [node("n1")], view.nodes.begin_list(), "1")
    writes = Writes(server, lambda: True)  # type: ignore[arg-type]
    owned = {SERVICE: (SERVICES, view.services), WORKLOAD: (workloads(APIS[0]), view.workloads)}
    recorder = EventRecorder(writes, "one", lambda: text_of(NOW))
    executor = Executor(view, writes, server, recorder, owned, lambda kind: None, lambda: text_of(NOW))  # type: ignore[arg-type]
    monkeypatch.setattr(faultpoint, "_armed", point)
    monkeypatch.setattr(faultpoint, "_left", 1)
    with pytest.raises((Died, BaseExceptionGroup)) as died:
        await executor.apply(JOB, [action])
    assert isinstance(died.value, Died) or died.value.subgroup(Died) is not None
    return server.asked


@pytest.mark.parametrize("name", AROUND)
async def test_the_operator_can_die_before_and_after_each_thing_it_does(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await die(monkeypatch, f"before-{name}", AROUND[name]) == 0
    assert await die(monkeypatch, f"after-{name}", AROUND[name]) > 0


def test_every_action_has_its_points() -> None:
    others = {"status", "event", "intervention"}
    assert set(faultpoint.CHANGES) == AROUND.keys() | others
