"""No field of the spec is read by nobody: changing any of them changes a policy, a pod or what follows the end."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from operator_builders import (
    NOW,
    OPTIONS,
    TEMPLATE,
    actions_of,
    document,
    ended_pod,
    observed,
    plan,
    report,
    spec_of,
)
from pydantic.alias_generators import to_camel

from holdfast.api.policy import Policy
from holdfast.api.section import Section
from holdfast.api.status import JobPhase
from holdfast.api.trainingjob import JobSpec, TrainingJob, policy_of
from holdfast.operator.decide.action import CreatePod, Submit
from holdfast.operator.decide.reconcile import reconcile

ROOT = Path(__file__).parents[3]
READERS = ("watchdog", "operator", "agent", "console", "cli", "trainer")

BASE: dict[str, Any] = {
    "nodes": {"min": 2, "max": 4, "spares": 0},
    "processesPerNode": 4,
    "startup": {"links": {}},
    "cost": {
        "gpuHour": 2.5,
        "currency": "USD",
        "prices": [{"gpu": "H100", "capacity": "Spot", "gpuHour": 5}],
        "budget": {"amount": 1000},
    },
    "utilization": {"gigaflopsPerToken": 42, "peakTeraflopsPerGpu": 989},
    "reporting": {"wandb": {"project": "gpt"}, "mlflow": {}},
    "faultPolicy": {"loss": {"learningRateScale": 0.8}},
}
# By field: another value than BASE or the default has.
CHANGED: Mapping[str, Any] = {
    "entrypoint": ["other.py"],
    "nodes.min": 1,
    "nodes.max": 3,
    "nodes.spares": 1,
    "processesPerNode": 2,
    "parallelism.tensor": 2,
    "parallelism.context": 2,
    "parallelism.pipeline": 2,
    "parallelism.replicaGroupNodes": 2,
    "startup.preflight": "full",
    "startup.timeout": "20m",
    "startup.links.flow": "3s",
    "startup.links.gang": "10s",
    "startup.links.timeout": "5m",
    "startup.preload": ["transformers"],
    "placement.pack": ["topology.kubernetes.io/rack"],
    "checkpoint.uri": "file:///runs/gpt",
    "checkpoint.interval": "500steps",
    "checkpoint.keep": 5,
    "checkpoint.memory.everySteps": 2,
    "checkpoint.memory.replicas": 2,
    "faultPolicy.heartbeat.interval": "1500ms",
    "faultPolicy.heartbeat.lost": "5s",
    "faultPolicy.hang.timeout": "10m",
    "faultPolicy.xid": {"79": "Restart"},
    "faultPolicy.conditions": {"LinkDown": "Evict"},
    "faultPolicy.thermal.slowdownMarginC": 5,
    "faultPolicy.thermal.sustained": "2m",
    "faultPolicy.thermal.action": "Report",
    "faultPolicy.corruption.fingerprintEverySteps": 50,
    "faultPolicy.corruption.selfTestEvery": "1h",
    "faultPolicy.corruption.action": "Report",
    "faultPolicy.loss.rewindAfter": "80steps",
    "faultPolicy.loss.learningRateScale": 0.5,
    "faultPolicy.loss.skipBatches": 200,
    "faultPolicy.loss.learningRateSteps": 500,
    "faultPolicy.loss.skipAboveNorm": 10,
    "faultPolicy.loss.clipDeviations": 3,
    "faultPolicy.straggler.slowerThan": "15%",
    "faultPolicy.straggler.sustained": "50steps",
    "faultPolicy.straggler.action": "Swap",
    "faultPolicy.preemption.source": "none",
    "faultPolicy.preemption.action": "Checkpoint",
    "faultPolicy.budget.evictions": 2,
    "faultPolicy.budget.per": "2h",
    "faultPolicy.budget.clusterFraction": "10%",
    "faultPolicy.restarts.max": 5,
    "faultPolicy.restarts.per": "1h",
    "faultPolicy.restarts.backoff": "20s",
    "cost.gpuHour": 3.5,
    "cost.currency": "EUR",
    "cost.prices.gpu": "H200",
    "cost.prices.capacity": "OnDemand",
    "cost.prices.gpuHour": 7.5,
    "cost.budget.amount": 5000,
    "cost.budget.alertAt": "50%",
    "utilization.gigaflopsPerToken": 43,
    "utilization.peakTeraflopsPerGpu": 990,
    "policyCheck": "require",
    "suspend": True,
    "reporting.wandb.project": "other",
    "reporting.wandb.entity": "research",
    "reporting.wandb.url": "https://wandb.example",
    "reporting.mlflow.uri": "https://mlflow.example",
    "reporting.mlflow.experiment": "other",
    "reporting.tensorboard": True,
    "reporting.webhook": "https://hooks.example",
    "reporting.secret": "another",
    "reporting.ranks": 2,
    "ttlAfterFinished": "1h",
    "template": {**TEMPLATE, "metadata": {"labels": {"team": "research"}}},
}


# An earlier version of the job, with another policy.
IN_FORCE = msgspec.structs.replace(
    report(generation=0), policy=Policy("research/gpt", 2, 4, lost_after_s=7.0, uid="uid-of-gpt")
)


def leaves(section: type[Section], path: str = "") -> Iterator[str]:
    """The fields below a section that hold no section themselves, as a file spells them."""
    for name, field in section.model_fields.items():
        place = path + to_camel(name)
        below = _section_in(field.annotation)
        if below is None:
            yield place
        else:
            yield from leaves(below, f"{place}.")


def _section_in(annotation: Any) -> type[Section] | None:
    found = (each for each in (annotation, *get_args(annotation)) if isinstance(each, type))
    return next((each for each in found if issubclass(each, Section)), None)


def with_changed(path: str, value: Any) -> dict[str, Any]:
    *sections, name = path.split(".")
    spec = dict(BASE)
    place = spec
    for section in sections:
        known = place.get(section, {})
        if isinstance(known, list):  # of a list the first section
            place[section] = [dict(known[0]), *known[1:]]
            place = place[section][0]
        else:
            place[section] = dict(known)
            place = place[section]
    place[name] = value
    return spec


def effects(spec: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a job with this spec comes to: its policy, the pods that are made for it, and what follows its end."""
    job = spec_of(document(**spec))
    assert isinstance(job, TrainingJob), job
    new = reconcile(observed(spec=job, pods=(), plan=plan(2), report=IN_FORCE), OPTIONS, NOW)
    over = observed(spec=job, pods=(ended_pod(0, exit_code=0),), plan=plan(0), report=report(JobPhase.SUCCEEDED))
    # Whether the policy is checked decides how long the watchdog is told the one before.
    submitted = [each.policy.held for each in actions_of(new, Submit)]
    return policy_of(job), submitted, actions_of(new, CreatePod), reconcile(over, OPTIONS, NOW).requeue_after_s


def test_the_table_knows_every_field_of_the_spec() -> None:
    assert set(CHANGED) == set(leaves(JobSpec))


@pytest.mark.parametrize("path", CHANGED)
def test_a_changed_field_changes_what_the_job_comes_to(path: str) -> None:
    assert effects(with_changed(path, CHANGED[path])) != effects(BASE)


def test_every_field_of_the_policy_has_a_reader() -> None:
    read = {
        node.attr
        for part in READERS
        for file in (ROOT / part).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute)
    }
    assert [name for name in _fields(Policy) if name not in read] == []


def _fields(struct: type[msgspec.Struct]) -> Iterator[str]:
    for field in msgspec.structs.fields(struct):
        yield field.name
        for each in (field.type, *get_args(field.type)):
            if isinstance(each, type) and issubclass(each, msgspec.Struct):
                yield from _fields(each)
