from datetime import timedelta
from typing import Any

import pytest
from full_spec import FULL_SPEC

from holdfast.api.errors import InvalidSpec
from holdfast.api.policy import (
    Budget,
    Capacity,
    CheckpointInterval,
    CorruptionPolicy,
    EvictionBudget,
    GpuHour,
    MemoryPolicy,
    MlflowTarget,
    ModelFlops,
    NoticeAction,
    Policy,
    Price,
    ReportingPolicy,
    RestartBudget,
    WandbTarget,
    XidAction,
)
from holdfast.api.quantity import Percent, Steps
from holdfast.api.selftest import TestLevel
from holdfast.api.trainingjob import TrainingJob, policy_of, read_trainingjob
from holdfast.watchdog.brain.rates import at_most

MINIMAL: dict[str, Any] = {
    "apiVersion": "holdfast.dev/v1alpha1",
    "kind": "TrainingJob",
    "metadata": {"name": "gpt"},
    "spec": {"entrypoint": ["train.py"]},
}


def job_with(**spec: Any) -> TrainingJob:
    return read_trainingjob({**MINIMAL, "spec": {**MINIMAL["spec"], **spec}})


def refusal_of(document: dict[str, Any]) -> list[str]:
    with pytest.raises(InvalidSpec) as refused:
        read_trainingjob(document)
    return [str(problem) for problem in refused.value.problems]


def test_a_job_needs_nothing_but_a_name_and_an_entrypoint() -> None:
    job = read_trainingjob(MINIMAL)
    assert job.id == "default/gpt"
    assert (job.spec.nodes.min, job.spec.nodes.max, job.spec.nodes.spares) == (1, 1, 0)
    assert job.spec.checkpoint.uri is None
    assert job.spec.cost is None


@pytest.mark.parametrize("words", [["train.py", "--note", ""], ["-m", "train", ""], ["train.py", ""]])
def test_an_argument_may_be_empty(words: list[str]) -> None:
    assert job_with(entrypoint=words).spec.entrypoint == tuple(words)


def test_a_script_without_a_name_is_refused() -> None:
    (told,) = refusal_of({**MINIMAL, "spec": {"entrypoint": ["", "--note", ""]}})
    assert told.startswith("spec.entrypoint[0]: '' is not accepted; name the script")


def test_the_defaults_are_the_ones_a_full_job_file_shows() -> None:
    shown = read_trainingjob({**MINIMAL, "spec": FULL_SPEC}).spec
    unasked = read_trainingjob(MINIMAL).spec
    faults = shown.fault_policy
    sized = {  # these go by the size of the job where nobody says
        "budget": faults.budget.model_copy(update={"evictions": None}),
        "restarts": faults.restarts.model_copy(update={"max": None}),
    }
    assert unasked.fault_policy.model_copy(update={"xid": faults.xid}) == faults.model_copy(update=sized)
    assert unasked.startup == shown.startup
    assert unasked.checkpoint.model_copy(update={"uri": shown.checkpoint.uri}) == shown.checkpoint
    assert unasked.ttl_after_finished == shown.ttl_after_finished


@pytest.mark.parametrize(
    ("nodes", "evictions", "restarts"),
    [(1, 4, 100), (1023, 4, 131), (2048, 6, 164), (12_500, 16, 490), (32_768, 36, 1000)],
)
def test_what_a_job_may_lose_by_default_grows_with_it(nodes: int, evictions: int, restarts: int) -> None:
    policy = policy_of(job_with(nodes={"min": nodes}))
    assert (policy.evictions.count, policy.restarts.count) == (evictions, restarts)
    said = policy_of(
        job_with(nodes={"min": nodes}, faultPolicy={"budget": {"evictions": 0}, "restarts": {"max": 7}})
    )
    assert (said.evictions.count, said.restarts.count) == (0, 7)


@pytest.mark.parametrize("nodes", [1, 256, 1024, 2048, 4096, 12_500, 32_768])
def test_no_budget_of_a_job_is_spent_by_the_chance_that_its_machines_fail_by(nodes: int) -> None:
    """At the worst rates that are published, of hardware in an hour and of any cause in a day."""
    policy = policy_of(job_with(nodes={"min": nodes}))
    assert at_most(policy.evictions.count, nodes * 6.5e-3 / 24) > 1 - 1e-5
    assert at_most(policy.restarts.count, nodes * 23.7e-3) > 1 - 1e-5


def test_a_job_written_out_reads_back_as_the_same_job() -> None:
    job = read_trainingjob({**MINIMAL, "spec": FULL_SPEC})
    assert read_trainingjob(job.model_dump(mode="json")) == job


def test_quantities_become_values_with_units() -> None:
    spec = job_with(checkpoint={"interval": "500steps"}, faultPolicy={"budget": {"clusterFraction": "12.5%"}}).spec
    assert spec.checkpoint.interval == Steps(500)
    assert spec.fault_policy.budget.cluster_fraction == Percent(0.125)
    assert job_with(checkpoint={"interval": "1h30m"}).spec.checkpoint.interval == timedelta(minutes=90)
    assert job_with(checkpoint={"interval": "auto"}).spec.checkpoint.interval is None


def test_max_follows_min_when_only_min_is_given() -> None:
    assert job_with(nodes={"min": 4}).spec.nodes.max == 4


@pytest.mark.parametrize(
    ("limits", "expected"),
    [({"nvidia.com/gpu": 8}, 8), ({"nvidia.com/gpu": "4"}, 4), ({"cpu": "4"}, 1)],
)
def test_processes_per_node_default_to_the_gpus_the_pod_asks_for(limits: dict[str, Any], expected: int) -> None:
    containers = [{"name": "sidecar"}, {"name": "trainer", "resources": {"limits": limits}}]
    assert job_with(template={"spec": {"containers": containers}}).spec.local_size() == expected


def test_processes_per_node_default_to_one_without_a_usable_template() -> None:
    assert job_with().spec.local_size() == 1
    assert job_with(template={"spec": {"containers": "none"}}).spec.local_size() == 1


def test_what_only_the_api_server_sets_is_accepted() -> None:
    metadata = {"name": "gpt", "uid": "1-2", "resourceVersion": "7", "generation": 3, "managedFields": [{"a": 1}]}
    status = {
        "phase": "Running",
        "goodput": {"ettr": 0.98},
        "conditions": [{"type": "Ready"}],
    }
    job = read_trainingjob({**MINIMAL, "metadata": metadata, "status": status})
    assert job.status is not None
    assert job.status.goodput is not None
    assert job.status.goodput.ettr == 0.98


def test_a_policy_has_the_default_numbers_when_nothing_is_asked_for() -> None:
    assert policy_of(read_trainingjob(MINIMAL)) == Policy(
        job="default/gpt",
        nodes_min=1,
        nodes_max=1,
        preflight=TestLevel.LIGHT,
        corruption=CorruptionPolicy(fingerprint_every=100),
        memory=MemoryPolicy(every_steps=1, replicas=1),
        interval=CheckpointInterval(),
        keep=3,
    )


@pytest.mark.parametrize(
    ("written", "interval"),
    [
        ("auto", CheckpointInterval()),
        ("10m", CheckpointInterval(seconds=600.0)),
        ("500steps", CheckpointInterval(steps=500)),
    ],
)
def test_the_interval_of_checkpoints_is_a_time_a_number_of_steps_or_left_open(
    written: str, interval: CheckpointInterval
) -> None:
    spec = {**MINIMAL["spec"], "checkpoint": {"interval": written}}
    assert policy_of(read_trainingjob({**MINIMAL, "spec": spec})).interval == interval


def test_no_snapshots_are_taken_every_zero_steps() -> None:
    spec = {**MINIMAL["spec"], "checkpoint": {"memory": {"everySteps": 0}}}
    assert policy_of(read_trainingjob({**MINIMAL, "spec": spec})).memory is None


def test_a_policy_carries_everything_the_job_says() -> None:
    spec = {
        **FULL_SPEC,
        "faultPolicy": {
            **FULL_SPEC["faultPolicy"],
            "heartbeat": {"interval": "500ms", "lost": "2s"},
            "hang": {"timeout": "90s"},
            "budget": {"evictions": 2, "per": "30m", "clusterFraction": "10%"},
            "restarts": {"max": 7, "per": "12h", "backoff": "1s"},
        },
        "startup": {"timeout": "5m"},
    }
    assert policy_of(read_trainingjob({**MINIMAL, "spec": spec})) == Policy(
        job="default/gpt",
        nodes_min=30,
        nodes_max=32,
        spares=2,
        processes_per_node=8,
        model_ranks=16,
        heartbeat_interval_s=0.5,
        lost_after_s=2.0,
        hang_timeout_s=90.0,
        startup_timeout_s=300.0,
        checkpoint_uri="s3://runs/gpt-7b",
        xid_actions={79: XidAction.EVICT, 94: XidAction.RESTART},
        evictions=EvictionBudget(count=2, per_s=1800.0, fraction=0.1),
        restarts=RestartBudget(count=7, per_s=43200.0, backoff_s=1.0),
        preflight=TestLevel.LIGHT,
        tensor=4,
        context=2,
        corruption=CorruptionPolicy(fingerprint_every=100),
        gpu_hour=GpuHour(2.5, "USD"),
        prices=(Price(1.6, "NVIDIA-H100-80GB-HBM3", Capacity.SPOT), Price(1.0, capacity=Capacity.SPOT)),
        budget=Budget(250000.0, 0.8),
        flops=ModelFlops(per_token=42e9, gpu_peak_per_s=989.5e12),
        memory=MemoryPolicy(every_steps=1, replicas=1),
        interval=CheckpointInterval(),
        keep=3,
        reporting=ReportingPolicy(
            wandb=WandbTarget("gpt-7b", "research", "https://wandb.example"),
            mlflow=MlflowTarget("https://mlflow.example", "gpt-7b"),
            tensorboard=True,
            webhook="https://hooks.example/oncall",
            secret="holdfast-reporting",
            ranks=2,
        ),
    )


DURATION = "write a number with a unit, such as 500ms, 10s, 5m or 24h"
WHOLE = "write a whole number"
NAME = "use lower-case letters, digits and dashes, at most 63, starting and ending with a letter or digit"

BAD_SPECS: list[tuple[dict[str, Any], str]] = [
    ({"entrypoint": []}, "spec.entrypoint: [] is not accepted; list at least one entry"),
    ({"entrypoint": "train.py"}, "spec.entrypoint: 'train.py' is not accepted; write a list"),
    (
        {"entrypoint": ["a", 3]},
        "spec.entrypoint[1]: 3 is not accepted; write a text; put it in quotes if it looks like a number",
    ),
    ({"nodse": {}}, "spec.nodse: {} is not accepted; there is no such field; did you mean nodes?"),
    (
        {"processes_per_node": 8},
        "spec.processes_per_node: 8 is not accepted; there is no such field; did you mean processesPerNode?",
    ),
    (
        {"nodes": {"zebra": 1}},
        "spec.nodes.zebra: 1 is not accepted; there is no such field; known here: max, min, spares",
    ),
    ({"nodes": {"maxx": 1}}, "spec.nodes.maxx: 1 is not accepted; there is no such field; did you mean max?"),
    ({"nodes": {"min": 0}}, "spec.nodes.min: 0 is not accepted; write a number of at least 1"),
    ({"nodes": {"min": "3", "max": 4}}, f"spec.nodes.min: '3' is not accepted; {WHOLE}"),
    ({"nodes": {"min": True, "max": 4}}, f"spec.nodes.min: True is not accepted; {WHOLE}"),
    ({"nodes": {"max": 1.5}}, f"spec.nodes.max: 1.5 is not accepted; {WHOLE}"),
    (
        {"nodes": {"min": 3, "max": 2}},
        "spec.nodes.min: 3 is not accepted; write at most the value of max, or raise max (2)",
    ),
    ({"nodes": {"spares": -1}}, "spec.nodes.spares: -1 is not accepted; write a number of at least 0"),
    ({"nodes": [1, 2]}, "spec.nodes: [1, 2] is not accepted; write a mapping of names to values"),
    ({"processesPerNode": 0}, "spec.processesPerNode: 0 is not accepted; write a number of at least 1"),
    (
        {"nodes": {"min": 3, "max": 4}, "processesPerNode": 2, "parallelism": {"tensor": 4}},
        "spec.nodes.min: 3 is not accepted; choose nodes whose processes divide by parallelism.tensor x "
        "context x pipeline (3 x 2 by 4)",
    ),
    (
        {"nodes": {"min": 2, "max": 3}, "parallelism": {"pipeline": 2}},
        "spec.nodes.max: 3 is not accepted; choose nodes whose processes divide by parallelism.tensor x "
        "context x pipeline (3 x 1 by 2)",
    ),
    (
        {"nodes": {"min": 2, "max": 6}, "parallelism": {"replicaGroupNodes": 4}},
        "spec.nodes.min: 2 is not accepted; write a multiple of parallelism.replicaGroupNodes (4)",
    ),
    (
        {"nodes": {"min": 4, "max": 6}, "parallelism": {"replicaGroupNodes": 4}},
        "spec.nodes.max: 6 is not accepted; write a multiple of parallelism.replicaGroupNodes (4)",
    ),
    (
        {"nodes": {"min": 6, "max": 6}, "parallelism": {"tensor": 2, "replicaGroupNodes": 3}},
        "spec.parallelism.replicaGroupNodes: 3 is not accepted; write nodes that hold whole models: their "
        "processes divide by tensor x context x pipeline (2)",
    ),
    (
        {
            "nodes": {"min": 2},
            "parallelism": {"replicaGroupNodes": 2},
            "checkpoint": {"memory": {"everySteps": 5}},
        },
        "spec.checkpoint.memory.everySteps: 5 is not accepted; leave checkpoint.memory out: with replica groups, "
        "groups hold each other's state",
    ),
    (
        {"parallelism": {"replicaGroupNodes": 0}},
        "spec.parallelism.replicaGroupNodes: 0 is not accepted; write a number of at least 1",
    ),
    ({"parallelism": {"tensor": 0}}, "spec.parallelism.tensor: 0 is not accepted; write a number of at least 1"),
    (
        {"startup": {"preflight": "Light"}},
        "spec.startup.preflight: 'Light' is not accepted; write one of: 'none', 'light' or 'full'",
    ),
    ({"startup": {"timeout": 10}}, f"spec.startup.timeout: 10 is not accepted; {DURATION}"),
    ({"startup": {"timeout": "10"}}, f"spec.startup.timeout: '10' is not accepted; {DURATION}"),
    ({"startup": {"timeout": "-10s"}}, f"spec.startup.timeout: '-10s' is not accepted; {DURATION}"),
    (
        {"startup": {"timeout": "0s"}},
        "spec.startup.timeout: '0s' is not accepted; write a duration longer than zero, such as 10s",
    ),
    ({"startup": {"timeout": "10 minutes"}}, f"spec.startup.timeout: '10 minutes' is not accepted; {DURATION}"),
    ({"ttlAfterFinished": "9999999999d"}, f"spec.ttlAfterFinished: '9999999999d' is not accepted; {DURATION}"),
    ({"checkpoint": {"keep": 0}}, "spec.checkpoint.keep: 0 is not accepted; write a number of at least 1"),
    ({"checkpoint": {"uri": ""}}, "spec.checkpoint.uri: '' is not accepted; write a text that is not empty"),
    (
        {"checkpoint": {"interval": "often"}},
        "spec.checkpoint.interval: 'often' is not accepted; write auto, a duration such as 10m, or a number of "
        "steps such as 500steps",
    ),
    (
        {"checkpoint": {"interval": "0steps"}},
        "spec.checkpoint.interval: '0steps' is not accepted; write auto, a duration such as 10m, or a number of "
        "steps such as 500steps",
    ),
    (
        {"faultPolicy": {"heartbeat": {"interval": "2s"}}},
        "spec.faultPolicy.heartbeat.lost: '3s' is not accepted; write at least twice the interval, 4s or more",
    ),
    (
        {"faultPolicy": {"loss": {"learningRateSteps": 100}}},
        "spec.faultPolicy.loss.learningRateSteps: '100' is not accepted; write learningRateScale below 1 as well, "
        "or leave this out",
    ),
    (
        {"faultPolicy": {"loss": {"skipAboveNorm": 1}}},
        "spec.faultPolicy.loss.skipAboveNorm: 1 is not accepted; write a number above 1",
    ),
    (
        {"faultPolicy": {"hang": {"timeout": 5}}},
        "spec.faultPolicy.hang.timeout: 5 is not accepted; write auto or a duration such as 10m",
    ),
    ({"faultPolicy": {"xid": {"abc": "Evict"}}}, f"spec.faultPolicy.xid.abc: 'abc' is not accepted; {WHOLE}"),
    (
        {"faultPolicy": {"xid": {79: "evict"}}},
        "spec.faultPolicy.xid.79: 'evict' is not accepted; write one of: 'Ignore', 'Watch', 'Restart' or 'Evict'",
    ),
    (
        {"faultPolicy": {"xid": {"0": "Evict"}}},
        "spec.faultPolicy.xid.0: '0' is not accepted; write a number of at least 1",
    ),
    (
        {"faultPolicy": {"budget": {"clusterFraction": 15}}},
        "spec.faultPolicy.budget.clusterFraction: 15 is not accepted; write a percentage from 0% to 100%, "
        "such as 15%",
    ),
    (
        {"faultPolicy": {"budget": {"clusterFraction": "200%"}}},
        "spec.faultPolicy.budget.clusterFraction: '200%' is not accepted; write a percentage from 0% to 100%, "
        "such as 15%",
    ),
    (
        {"faultPolicy": {"loss": {"rewindAfter": "5m"}}},
        "spec.faultPolicy.loss.rewindAfter: '5m' is not accepted; "
        "write a whole number above zero and the word steps, such as 50steps",
    ),
    (
        {"faultPolicy": {"loss": {"learningRateScale": 2}}},
        "spec.faultPolicy.loss.learningRateScale: 2 is not accepted; write a number of at most 1",
    ),
    (
        {"faultPolicy": {"straggler": {"slowerThan": 15}}},
        "spec.faultPolicy.straggler.slowerThan: 15 is not accepted; "
        "write auto or a percentage from 0% to 100%, such as 15%",
    ),
    (
        {"faultPolicy": {"straggler": {"sustained": "5m"}}},
        "spec.faultPolicy.straggler.sustained: '5m' is not accepted; "
        "write auto, or a whole number above zero and the word steps, such as 50steps",
    ),
    (
        {"faultPolicy": {"straggler": {"action": "Restart"}}},
        "spec.faultPolicy.straggler.action: 'Restart' is not accepted; write one of: 'Report', 'Swap' or 'Evict'",
    ),
    (
        {"faultPolicy": {"thermal": {"slowdownMarginC": float("nan")}}},
        "spec.faultPolicy.thermal.slowdownMarginC: nan is not accepted; write a finite number",
    ),
    (
        {"faultPolicy": {"thermal": {"slowdownMarginC": "hot"}}},
        "spec.faultPolicy.thermal.slowdownMarginC: 'hot' is not accepted; write a number",
    ),
    ({"cost": {}}, "spec.cost.gpuHour: (missing) is not accepted; add it"),
    (
        {"cost": {"gpuHour": 1, "prices": [{"gpuHour": 2}]}},
        "spec.cost.prices[0].gpu: (missing) is not accepted; name a GPU product, a capacity, or both; "
        "cost.gpuHour is the price of all others",
    ),
    (
        {"cost": {"gpuHour": 1, "prices": [{"gpu": "A", "gpuHour": 2}, {"gpu": "A", "gpuHour": 3}]}},
        "spec.cost.prices[1].gpuHour: 3.0 is not accepted; say the price of A once",
    ),
    ({"cost": {"gpuHour": 0}}, "spec.cost.gpuHour: 0 is not accepted; write a number above 0"),
    (
        {"cost": {"gpuHour": 1, "currency": "dollars"}},
        "spec.cost.currency: 'dollars' is not accepted; write a text of the form ^[A-Z]{3}$",
    ),
    (
        {"utilization": {"gigaflopsPerToken": 0, "peakTeraflopsPerGpu": 989}},
        "spec.utilization.gigaflopsPerToken: 0 is not accepted; write a number above 0",
    ),
    (
        {"utilization": {"gigaflopsPerToken": 42, "peakTeraflopsPerGpu": float("inf")}},
        "spec.utilization.peakTeraflopsPerGpu: inf is not accepted; write a finite number",
    ),
    (
        {"utilization": {"gigaflopsPerToken": 42e9, "peakTeraflopsPerGpu": 989}},
        "spec.utilization.gigaflopsPerToken: 42000000000.0 is not accepted; write a number of at most 1000000000",
    ),
    (
        {"utilization": {"gigaflopsPerToken": 42}},
        "spec.utilization.peakTeraflopsPerGpu: (missing) is not accepted; add it",
    ),
    (
        {"reporting": {"wandb": {}}},
        "spec.reporting.wandb.project: (missing) is not accepted; add it",
    ),
    (
        {"reporting": {"wandb": {"project": "x", "apiKey": "0123"}}},
        "spec.reporting.wandb.apiKey: '0123' is not accepted; "
        "there is no such field; known here: entity, project, url",
    ),
    (
        {"reporting": {"webhook": "file:///etc/passwd"}},
        "spec.reporting.webhook: 'file:///etc/passwd' is not accepted; "
        "write a text of the form ^https?://[^/?#@\\s]+(/[^\\s]*)?$",
    ),
    (
        {"reporting": {"mlflow": {"uri": "https://me:secret@mlflow.example"}}},
        "spec.reporting.mlflow.uri: 'https://me:secret@mlflow.example' is not accepted; "
        "leave the name and password out; put them into the Secret that spec.reporting.secret names",
    ),
    (
        {"reporting": {"ranks": 65}},
        "spec.reporting.ranks: 65 is not accepted; write a number of at most 64",
    ),
    ({"suspend": "yes"}, "spec.suspend: 'yes' is not accepted; write true or false"),
    ({"template": []}, "spec.template: [] is not accepted; write a mapping of names to values"),
]


@pytest.mark.parametrize(("spec", "message"), BAD_SPECS, ids=lambda value: str(value)[:60])
def test_a_bad_spec_is_refused_with_field_value_and_fix(spec: dict[str, Any], message: str) -> None:
    assert refusal_of({**MINIMAL, "spec": {**MINIMAL["spec"], **spec}}) == [message]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({**MINIMAL, "spec": {}}, "spec.entrypoint: (missing) is not accepted; add it"),
        (
            {**MINIMAL, "apiVersion": "v1"},
            "apiVersion: 'v1' is not accepted; write 'holdfast.dev/v1alpha1'",
        ),
        ({**MINIMAL, "kind": "Job"}, "kind: 'Job' is not accepted; write 'TrainingJob'"),
        (
            {**MINIMAL, "metadata": {}},
            "metadata.name: None is not accepted; give the job a name; it is how every command refers to it",
        ),
        ({**MINIMAL, "metadata": {"name": "My_Job"}}, f"metadata.name: 'My_Job' is not accepted; {NAME}"),
        (
            {**MINIMAL, "metadata": {"name": "a", "namespace": "../x"}},
            f"metadata.namespace: '../x' is not accepted; {NAME}",
        ),
        ({**MINIMAL, "metadata": {"name": "a" * 64}}, f"metadata.name: '{'a' * 64}' is not accepted; {NAME}"),
        (
            {**MINIMAL, "sepc": {}},
            "sepc: {} is not accepted; there is no such field; did you mean spec?",
        ),
    ],
)
def test_a_bad_document_is_refused_with_field_value_and_fix(document: dict[str, Any], message: str) -> None:
    assert refusal_of(document) == [message]


def test_every_problem_is_named_at_once() -> None:
    problems = refusal_of({**MINIMAL, "spec": {"nodes": {"min": 0, "spares": -1}, "suspend": 1}})
    assert [problem.partition(":")[0] for problem in problems] == [
        "spec.entrypoint",
        "spec.nodes.min",
        "spec.nodes.spares",
        "spec.suspend",
    ]


def test_pods_have_longer_to_come_than_processes_of_one_machine() -> None:
    document = {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "gpt", "uid": "u-1"},
        "spec": {"entrypoint": ["train.py"]},
    }
    assert policy_of(read_trainingjob(document)).form_grace_s == 30.0
    del document["metadata"]["uid"]  # type: ignore[attr-defined]
    assert policy_of(read_trainingjob(document)).form_grace_s == 10.0


def test_without_a_source_notices_of_preemption_change_nothing() -> None:
    spec = {"entrypoint": ["train.py"], "faultPolicy": {"preemption": {"source": "none", "action": "Migrate"}}}
    assert policy_of(read_trainingjob({**MINIMAL, "spec": spec})).notices is NoticeAction.REPORT
    assert policy_of(read_trainingjob(MINIMAL)).notices is NoticeAction.MIGRATE


@pytest.mark.parametrize(
    ("uri", "is_known"),
    [
        *(
            (uri, True)
            for uri in ("/data/run", "file:///data/run", "file://localhost/data", "runs/gpt", "run", "./r:1/x")
        ),
        *((f"{scheme}://bucket/prefix", True) for scheme in ("s3", "gs", "az", "abfs", "abfss")),
        *(
            (uri, False)
            for uri in ("s3:/bucket", "s3://", "s3:///x", "S3://b/p", "S3a://b", "http://host/x", "gcs://b")
        ),
        *((uri, False) for uri in ("file://host/data", "file:data", "ftp://x/y", "run:7", "x" * 1025)),
    ],
)
def test_a_place_for_checkpoints_is_of_a_kind_that_is_known(uri: str, is_known: bool) -> None:
    if is_known:
        assert job_with(checkpoint={"uri": uri}).spec.checkpoint.uri == uri
        return
    with pytest.raises(InvalidSpec, match=r"spec\.checkpoint\.uri: "):
        job_with(checkpoint={"uri": uri})
