"""What of a look is carried out though something else of it fails."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from operator_builders import NOW, OPTIONS, document, job_object, spec_of

from holdfast.api.trainingjob import TrainingJob
from holdfast.operator.act.executor import Executor
from holdfast.operator.act.statuswriter import EventRecorder
from holdfast.operator.decide.action import (
    Cordon,
    CreatePod,
    DeleteJob,
    EndCheck,
    KubeEvent,
    RecordLast,
    SetNodeHealth,
    StartCheck,
)
from holdfast.operator.decide.checkpod import checking
from holdfast.operator.kube.clusterview import ClusterView
from holdfast.operator.kube.objects import text_of
from holdfast.operator.kube.writes import Writes
from holdfast.wire.kube.client import Request
from holdfast.wire.kube.reply import refusal

TELLS = SetNodeHealth("n1", "False", "Faulty", "XID 79", text_of(NOW))
LAST = RecordLast(KubeEvent("WoundUp", "the job is still; nothing is left"))
Tells = SetNodeHealth | RecordLast


class Refuses:
    """An API server that answers whatever is asked of nodes and events with this, and takes the rest."""

    def __init__(self, code: int) -> None:
        self._code = code
        self.deleted: list[str] = []

    async def ask(self, request: Request, guard: Callable[[], None] | None = None) -> bytes:
        if "/nodes/" in request.path or "/events" in request.path:
            raise refusal(self._code, b'{"reason": "Because"}')
        if request.verb == "DELETE":
            self.deleted.append(request.path)
        return b'{"kind": "Status"}'


async def deleted_after(first: Tells | Cordon, code: int) -> bool:
    """Whether a job whose time is over is deleted, though what comes before that is answered so."""
    server, view = Refuses(code), ClusterView(*(lambda name: None,) * 3)
    writes = Writes(server, lambda: True)  # type: ignore[arg-type]
    executor = Executor(
        view,
        writes,
        None,  # type: ignore[arg-type]
        EventRecorder(writes, "one", lambda: text_of(NOW)),
        owned={},
        done=lambda kind: None,
        wall=lambda: text_of(NOW),
    )
    faults = await executor.apply(job_object(), (first, DeleteJob()))
    assert [action for action, _ in faults] == [first]
    return bool(server.deleted)


@pytest.mark.parametrize("code", [403, 422], ids=["without the right", "against a policy"])
@pytest.mark.parametrize("tells", [TELLS, LAST])
async def test_a_job_goes_though_others_cannot_be_told_of_its_node_or_its_end(tells: Tells, code: int) -> None:
    assert await deleted_after(tells, code)


@pytest.mark.parametrize(("tells", "code"), [(TELLS, 409), (TELLS, 500), (LAST, 500), (LAST, 429)])
async def test_a_job_waits_until_others_were_told_where_that_is_a_matter_of_time(tells: Tells, code: int) -> None:
    assert not await deleted_after(tells, code)


async def test_the_last_event_is_told_once_whatever_it_says_the_second_time() -> None:
    server = Keeps()
    recorder = EventRecorder(Writes(server, lambda: True), "one", lambda: text_of(NOW))  # type: ignore[arg-type]
    first, second = "the job is still; nothing is left", "the watchdog does not know the job; nothing is left"
    for says in (first, second):
        await recorder.record(job_object(), KubeEvent("WoundUp", says), once=True)
    (told,) = server.there.values()
    assert (told["message"], told["count"]) == (first, 1)


async def test_the_end_is_not_told_while_something_is_still_to_be_done() -> None:
    server = Keeps(refused="/pods/")
    writes = Writes(server, lambda: True)  # type: ignore[arg-type]
    recorder = EventRecorder(writes, "one", lambda: text_of(NOW))
    view = ClusterView(*(lambda name: None,) * 3)
    executor = Executor(view, writes, None, recorder, {}, lambda kind: None, lambda: text_of(NOW))  # type: ignore[arg-type]
    stuck = CreatePod({"kind": "Pod", "metadata": {"name": "gpt-0", "namespace": "research"}})
    faults = await executor.apply(job_object(), (stuck, LAST))
    assert [action for action, _ in faults] == [stuck]
    assert server.there == {}
    assert await executor.apply(job_object(), (LAST,)) == []
    assert len(server.there) == 1


async def test_a_job_waits_until_its_node_is_out_of_service() -> None:
    assert not await deleted_after(Cordon("n1", "XID 79", "incident-1"), 403)


# The pod that tries a changed policy, and what it is allowed by.


class Keeps:
    """An API server that keeps what it is given; what has `refused` in its path it refuses."""

    def __init__(self, refused: str = "") -> None:
        self._refused = refused
        self.there: dict[str, dict[str, Any]] = {}

    async def ask(self, request: Request, guard: Callable[[], None] | None = None) -> bytes:
        if request.verb == "POST":
            given = msgspec.json.decode(request.body or b"")
            path = f"{request.path}/{given['metadata']['name']}"
            if self._refused and self._refused in path:
                raise refusal(403, b'{"reason": "Forbidden", "message": "exceeded quota"}')
            if path in self.there:
                raise refusal(409, b'{"reason": "AlreadyExists"}')
            self.there[path] = given
            return msgspec.json.encode(given)
        if request.path not in self.there:
            raise refusal(404, b'{"reason": "NotFound"}')
        if request.verb == "DELETE":
            del self.there[request.path]
            return b'{"kind": "Status"}'
        return msgspec.json.encode(self.there[request.path])


def checked_by(server: Keeps) -> tuple[Executor, StartCheck]:
    writes = Writes(server, lambda: True)  # type: ignore[arg-type]
    executor = Executor(
        ClusterView(*(lambda name: None,) * 3),
        writes,
        None,  # type: ignore[arg-type]
        EventRecorder(writes, "one", lambda: text_of(NOW)),
        owned={},
        done=lambda kind: None,
        wall=lambda: text_of(NOW),
    )
    job = spec_of(document(policyCheck="warn"))
    assert isinstance(job, TrainingJob)
    return executor, checking(job, OPTIONS, "abc")


async def test_a_checking_pod_comes_with_what_it_is_allowed_by_and_goes_with_it() -> None:
    server = Keeps()
    executor, check = checked_by(server)
    assert await executor.apply(job_object(), (check,)) == []
    kinds = ["pods", "rolebindings", "roles", "serviceaccounts"]
    assert sorted(path.split("/")[-2] for path in server.there) == kinds
    assert {path.split("/")[-1] for path in server.there} == {"gpt-abc-check"}
    assert await executor.apply(job_object(), (check,)) == [], "once more is once"
    assert len(server.there) == len(kinds)
    assert await executor.apply(job_object(), (EndCheck("gpt-abc-check", ""),)) == []
    assert server.there == {}


async def test_of_a_checking_pod_that_is_refused_nothing_is_left() -> None:
    server = Keeps(refused="/pods/")
    executor, check = checked_by(server)
    ((action, error),) = await executor.apply(job_object(), (check,))
    assert (action, "exceeded quota" in str(error)) == (check, True)
    assert server.there == {}


async def test_what_somebody_else_has_of_that_name_is_not_taken_for_ours() -> None:
    server = Keeps()
    executor, check = checked_by(server)
    theirs = {"metadata": {"name": "gpt-abc-check", "namespace": "research"}}
    server.there["/api/v1/namespaces/research/serviceaccounts/gpt-abc-check"] = theirs
    ((_, error),) = await executor.apply(job_object(), (check,))
    assert "not this job's" in str(error)
    assert list(server.there.values()) == [theirs]
