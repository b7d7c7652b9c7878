"""What the operator reads of a cluster to know how many workers a node runs."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from operator_builders import OPTIONS, document, job_object, spec_of

from holdfast.api.errors import InvalidSpec, Unavailable
from holdfast.api.gpus import Uncounted, asks_cluster
from holdfast.api.trainingjob import TrainingJob
from holdfast.operator.act import gpucounts
from holdfast.operator.act.gpucounts import ASK_AGAIN_S, GpuCounts
from holdfast.operator.decide.inqueue import demands_of
from holdfast.operator.decide.observed import read_spec
from holdfast.operator.kube.objects import Job
from holdfast.operator.kube.writes import Writes
from holdfast.wire.kube.client import Request
from holdfast.wire.kube.reply import refusal

DEVICES = "/apis/resource.k8s.io/v1"
TEMPLATE = f"{DEVICES}/namespaces/research/resourceclaimtemplates/eight"
EIGHT = {"devices": {"requests": [{"name": "gpus", "exactly": {"deviceClassName": "h100", "count": 8}}]}}
H100 = {
    "metadata": {"name": "h100"},
    "spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}]},
}


class Objects:
    """An API server that has these, by path; a number is what it answers instead."""

    def __init__(self) -> None:
        self.held: dict[str, Any] = {f"{DEVICES}/deviceclasses": {"items": [H100]}}
        self.asked: list[str] = []

    async def ask(self, request: Request, guard: Callable[[], None] = lambda: None) -> bytes:
        assert request.verb == "GET"
        self.asked.append(request.path)
        found = self.held.get(request.path, 404)
        if isinstance(found, int):
            raise refusal(found, b'{"reason": "No", "message": "no"}')
        return msgspec.json.encode(found)


@pytest.fixture
def server() -> Objects:
    made = Objects()
    made.held[TEMPLATE] = {"metadata": {"name": "eight"}, "spec": {"spec": EIGHT}}
    return made


def claiming(**spec: Any) -> dict[str, Any]:
    container = {"name": "trainer", "image": "train:1", "resources": {"claims": [{"name": "gpus"}]}}
    pod = {"containers": [container], "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "eight"}]}
    return dict(document(template={"spec": pod}, **spec)["spec"])


def counts(server: Objects, now: list[float]) -> GpuCounts:
    return GpuCounts(Writes(server, lambda: True), lambda: now[0])  # type: ignore[arg-type]


async def test_a_count_is_asked_for_once_as_long_as_the_template_stays(server: Objects) -> None:
    counting, job = counts(server, [0.0]), job_object(spec=claiming())
    assert counting.known(job) is None
    assert await counting.of(job) == await counting.of(job_object(spec=claiming(suspend=True), generation=2)) == 8
    assert len(server.asked) == 2
    assert counting.known(job) == 8
    counting.forget("research/gpt")
    assert counting.known(job) is None


@pytest.mark.parametrize(
    "spec",
    [
        document(template={"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 8}}}]}})["spec"],
        claiming(processesPerNode=4),
        {},
        {"template": "x"},
    ],
)
async def test_nobody_is_asked_where_the_spec_tells(server: Objects, spec: dict[str, Any]) -> None:
    assert await counts(server, [0.0]).of(job_object(spec=spec)) is None
    assert server.asked == []


async def test_a_template_that_comes_after_the_job_is_found(server: Objects) -> None:
    held, now, job = server.held.pop(TEMPLATE), [0.0], job_object(spec=claiming())
    counting = counts(server, now)
    assert isinstance(await counting.of(job), Uncounted)
    server.held[TEMPLATE] = held
    assert isinstance(await counting.of(job), Uncounted), "it is not asked all the time"
    now[0] += ASK_AGAIN_S
    assert await counting.of(job) == 8


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (403, "the operator may not read ResourceClaimTemplate eight: no"),
        (404, "there is no ResourceClaimTemplate eight"),
        ({"metadata": {"name": "eight"}, "spec": {"spec": {"devices": 3}}}, "cannot be read"),
    ],
)
async def test_what_cannot_be_read_is_said(server: Objects, answer: Any, says: str) -> None:
    server.held[TEMPLATE] = answer
    found = await counts(server, [0.0]).of(job_object(spec=claiming()))
    assert isinstance(found, Uncounted)
    assert says in found.why


async def test_an_outage_says_nothing_of_the_claim(server: Objects) -> None:
    server.held[TEMPLATE] = 503
    with pytest.raises(Unavailable):
        await counts(server, [0.0]).of(job_object(spec=claiming()))


async def test_classes_that_may_not_be_read_leave_those_of_known_names(server: Objects) -> None:
    server.held[f"{DEVICES}/deviceclasses"] = 403
    wanted = {"name": "gpus", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 2}}
    server.held[TEMPLATE]["spec"]["spec"] = {"devices": {"requests": [wanted]}}
    assert await counts(server, [0.0]).of(job_object(spec=claiming())) == 2


def read(job: Job, gpus: Any) -> TrainingJob | InvalidSpec:
    return read_spec(job, gpus)


def test_the_spec_is_read_with_what_was_counted() -> None:
    job = job_object(spec=claiming())
    found = read(job, 8)
    assert isinstance(found, TrainingJob)
    assert found.spec.local_size() == 8
    whole = read(job_object(spec=claiming(parallelism={"tensor": 16}, nodes={"min": 1, "max": 2})), 8)
    assert "(1 x 8 by 16)" in str(whole)


def test_a_spec_that_nobody_counts_is_refused_with_all_that_is_wrong() -> None:
    found = read(job_object(spec=claiming(nodes={"min": 0})), Uncounted("there is no such claim"))
    assert isinstance(found, InvalidSpec)
    assert [each.field for each in found.problems] == ["spec.nodes.min", "spec.processesPerNode"]
    assert str(found.problems[1]).endswith("cannot be counted: there is no such claim")


def test_a_queue_is_told_of_what_the_whole_pod_and_its_claims_ask_for() -> None:
    limits = {"limits": {"cpu": "8", "memory": "32Gi"}}
    template = claiming()["template"]
    template["spec"]["resources"] = limits
    job = spec_of(document(template=template, processesPerNode=8))
    assert isinstance(job, TrainingJob)
    demands = demands_of(job, OPTIONS)
    assert (demands["resources"], demands["resourceClaims"]) == (limits, template["spec"]["resourceClaims"])
    assert demands["containers"][0]["resources"]["claims"] == [{"name": "gpus"}]


async def test_a_spec_that_is_known_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[object] = []

    def asks(template: object) -> tuple[frozenset[Any], bool]:
        reads.append(template)
        return frozenset(), False

    monkeypatch.setattr(gpucounts, "asks_cluster", asks)
    counting, plain = counts(Objects(), [0.0]), job_object()
    assert [await counting.of(plain) for _ in range(3)] == [None] * 3
    assert len(reads) == 1


async def test_what_was_counted_holds_for_a_newer_spec_with_the_same_template_which_is_read_once(
    server: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[object] = []

    def asks(template: object) -> Any:
        reads.append(template)
        return asks_cluster(template)

    monkeypatch.setattr(gpucounts, "asks_cluster", asks)
    counting = counts(server, [0.0])
    looks = [job_object(spec=claiming(suspend=each > 1), generation=each) for each in (1, 1, 2, 2, 2)]
    assert [await counting.of(each) for each in looks] == [8] * 5
    assert len(reads) == 2
    assert len(server.asked) == 2, "the claim and the classes, once"


def test_a_job_that_runs_with_more_workers_than_gpus_goes_on_with_them() -> None:
    shared = {"spec": {"containers": [{"name": "trainer", "resources": {"limits": {"nvidia.com/gpu": 1}}}]}}
    job = job_object(spec=document(template=shared, processesPerNode=2)["spec"])
    assert isinstance(read_spec(job), InvalidSpec)
    assert isinstance(read_spec(job, runs_with=4), InvalidSpec), "it is to run with others"
    assert isinstance(read_spec(job, runs_with=2), TrainingJob)
