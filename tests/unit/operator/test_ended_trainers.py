"""Pods whose trainer has ended while something else of them runs on, and whose memory it was that ran out."""

from typing import Any

import msgspec
import pytest
from operator_builders import (
    NOW,
    OPTIONS,
    actions_of,
    document,
    ended_pod,
    observed,
    plan,
    pod,
    report,
    spec_of,
)

from holdfast.api.plan import PodEnd, PodState
from holdfast.api.status import JobPhase
from holdfast.api.trainingjob import TrainingJob
from holdfast.operator.decide.action import CreatePod, DeletePod
from holdfast.operator.decide.ending import LINGERING_S
from holdfast.operator.decide.observed import Observed
from holdfast.operator.decide.podbuilder import blueprint
from holdfast.operator.decide.pods import ended_by, has_ended, state_of
from holdfast.operator.decide.reconcile import reconcile
from holdfast.operator.kube.objects import (
    TRAINER_NAME,
    Container,
    ContainerState,
    ContainerStatus,
    Pod,
    PodSpec,
    PodStatus,
    Resources,
    RunningSince,
    Terminated,
    text_of,
)

GIB = Resources({"memory": "1Gi"})
NONE = Resources()
OOM, EXIT, WELL = Terminated(137, "OOMKilled"), Terminated(143, "Error"), Terminated(0, "Completed")
RUNS = ContainerState(running=RunningSince(text_of(NOW - 3600)))


def ended(end: Terminated, ran_s: float = 3600.0) -> ContainerState:
    times = {"started_at": text_of(NOW - 5 - ran_s), "finished_at": text_of(NOW - 5)}
    return ContainerState(terminated=msgspec.structs.replace(end, **times))


def made_of(
    *containers: tuple[str, ContainerState, Resources],
    init: tuple[str, ContainerState, Resources] | None = None,
    phase: str = "Running",
    limits: Resources = NONE,
    **fields: Any,
) -> Pod:
    """A pod of these containers, and of one among its init containers that runs beside them."""
    base = pod(0, phase=phase, **fields)
    inits = () if init is None else (init,)
    spec = PodSpec(
        "n0",
        tuple(Container(name, resources=given) for name, _, given in containers),
        tuple(Container(name, resources=given, restart_policy="Always") for name, _, given in inits),
        limits,
    )
    status = PodStatus(
        phase,
        container_statuses=tuple(ContainerStatus(name, state) for name, state, _ in containers),
        init_container_statuses=tuple(ContainerStatus(name, state) for name, state, _ in inits),
    )
    return msgspec.structs.replace(base, spec=spec, status=status)


SIDECAR = ("mesh", RUNS, NONE)
MONITOR = ("monitor", RUNS, NONE)


@pytest.mark.parametrize(
    ("given", "end"),
    [
        (made_of(("trainer", ended(OOM), NONE), limits=GIB, phase="Failed"), PodEnd.OWN_LIMIT),
        (made_of(("trainer", ended(OOM), NONE), limits=GIB, init=SIDECAR), PodEnd.OWN_LIMIT),
        (made_of(("trainer", ended(OOM), GIB), init=SIDECAR), PodEnd.OWN_LIMIT),
        (made_of(("trainer", ended(OOM), GIB), MONITOR), PodEnd.OWN_LIMIT),
        # Another container comes first, and was ended because the trainer had been.
        (made_of(("a-mesh", ended(EXIT), NONE), ("trainer", ended(OOM), GIB), phase="Failed"), PodEnd.OWN_LIMIT),
        # Somebody deletes what is left of it.
        (made_of(("trainer", ended(OOM), GIB), MONITOR, deleted=True), PodEnd.OWN_LIMIT),
        # Nobody set a limit: it was the node's memory.
        (made_of(("trainer", ended(OOM), NONE), ("monitor", RUNS, GIB)), None),
        (made_of(("trainer", ended(OOM), NONE), limits=Resources({"cpu": "4"}), init=SIDECAR), None),
        # The monitor ran out of its own, and the trainer ended for another reason.
        (made_of(("monitor", ended(OOM), GIB), ("trainer", ended(EXIT), NONE), phase="Failed"), None),
    ],
)
def test_memory_that_a_limit_bounds_is_the_pods_own_whatever_runs_on(given: Pod, end: PodEnd | None) -> None:
    assert ended_by(given) is end
    assert state_of(given)[0] is PodState.GONE


def test_an_init_container_that_needs_more_than_its_limit_blames_no_node() -> None:
    waits = ("trainer", ContainerState(), NONE)
    given = made_of(waits, init=("prepare", ended(OOM), GIB), phase="Failed")
    assert (ended_by(given), state_of(given)) == (PodEnd.OWN_LIMIT, (PodState.GONE, "OOMKilled (exit code 137)"))


def test_a_trainer_that_its_kubelet_starts_again_has_not_ended() -> None:
    given = made_of(("trainer", ended(OOM), GIB))
    again = tuple(msgspec.structs.replace(each, restart_policy="Always") for each in given.spec.containers)
    given = msgspec.structs.replace(given, spec=msgspec.structs.replace(given.spec, containers=again))
    assert (has_ended(given), ended_by(given)) == (False, None)


def test_a_sidecar_that_ends_ends_no_member() -> None:
    for given in (
        made_of(("trainer", RUNS, NONE), ("monitor", ended(EXIT), NONE)),
        made_of(("trainer", RUNS, NONE)),
    ):
        assert (has_ended(given), state_of(given)) == (False, (PodState.RUNNING, ""))


@pytest.mark.parametrize("name", ["trainer", "main"])
def test_the_trainer_is_known_by_name_though_admission_puts_another_container_before_it(name: str) -> None:
    template = {"spec": {"containers": [{"name": name, "image": "train:1"}]}}
    job = spec_of(document(template=template))
    assert isinstance(job, TrainingJob)
    written = blueprint(job, OPTIONS).manifest["metadata"]["annotations"]
    assert written.get(TRAINER_NAME) == (None if name == "trainer" else name)
    given = made_of(("istio-proxy", RUNS, NONE), (name, ended(OOM), GIB))
    given = msgspec.structs.replace(
        given,
        metadata=msgspec.structs.replace(given.metadata, annotations={**given.metadata.annotations, **written}),
    )
    assert ended_by(given) is PodEnd.OWN_LIMIT


def deleted(seen: Observed, now: float = NOW) -> list[str]:
    return [each.name for each in actions_of(reconcile(seen, OPTIONS, now), DeletePod)]


def test_another_container_that_goes_on_holds_no_place_for_ever() -> None:
    seen = observed(pods=(made_of(("trainer", ended(OOM), GIB), MONITOR), pod(1)))
    assert deleted(seen) == ["gpt-0"]
    assert len(actions_of(reconcile(seen, OPTIONS, NOW), CreatePod)) == 1


def test_a_sidecar_is_ended_by_its_kubelet_and_the_pod_kept_for_its_logs() -> None:
    seen = observed(pods=(made_of(("trainer", ended(OOM), GIB), init=SIDECAR), pod(1)))
    assert deleted(seen) == []
    assert len(actions_of(reconcile(seen, OPTIONS, NOW), CreatePod)) == 1


def test_a_trainer_that_ends_right_after_its_start_is_a_crash_loop_though_another_container_goes_on() -> None:
    seen = observed(pods=(made_of(("trainer", ended(OOM, ran_s=3.0), GIB), MONITOR), pod(1)))
    outcome = reconcile(seen, OPTIONS, NOW)
    assert actions_of(outcome, CreatePod) == []
    assert actions_of(outcome, DeletePod) == [], "it tells of the loop"
    (made,) = actions_of(reconcile(seen, OPTIONS, NOW + 60.0), CreatePod)
    assert made.manifest["metadata"]["annotations"]["holdfast.dev/quick-ends"] == "1"


def test_a_trainer_that_did_its_work_waits_for_the_jobs_end_like_a_pod_that_did() -> None:
    seen = observed(pods=(made_of(("trainer", ended(WELL), NONE), MONITOR), ended_pod(1, exit_code=0)))
    outcome = reconcile(seen, OPTIONS, NOW)
    assert (actions_of(outcome, CreatePod), deleted(seen)) == ([], [])


def test_after_the_jobs_end_the_pods_of_which_another_container_goes_on_are_let_go() -> None:
    pods = (
        made_of(("trainer", ended(WELL), NONE), MONITOR),
        made_of(("trainer", ended(WELL), NONE), phase="Succeeded"),
    )
    over = {"phase": "Succeeded", "finishedAt": text_of(NOW - LINGERING_S - 1)}
    seen = observed(pods=pods[:1], plan=plan(0), report=report(JobPhase.SUCCEEDED))
    seen = msgspec.structs.replace(
        seen, job=msgspec.structs.replace(seen.job, status=msgspec.Raw(msgspec.json.encode(over)))
    )
    assert deleted(seen) == ["gpt-0"]
    assert deleted(msgspec.structs.replace(seen, pods=pods[1:])) == []
