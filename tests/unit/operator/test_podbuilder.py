from typing import Any

import msgspec
import pytest
from operator_builders import OPTIONS, UID, document, spec_of

from holdfast.api.trainingjob import TrainingJob
from holdfast.operator.decide.podbuilder import blueprint
from holdfast.operator.decide.pods import ordinal_of, pod_name
from holdfast.operator.decide.template import RESERVED_ENVIRONMENT


def job_of(
    pod_spec: dict[str, Any] | None = None, *, metadata: dict[str, Any] | None = None, **spec: Any
) -> TrainingJob:
    """A job with a trainer container; `pod_spec` adds to its pod."""
    pod = {"containers": [{"name": "trainer", "image": "registry.example/train:1"}], **(pod_spec or {})}
    job = spec_of(document(template={"spec": pod, **({"metadata": metadata} if metadata else {})}, **spec))
    assert isinstance(job, TrainingJob)
    return job


def pod_of(job: TrainingJob, avoided: tuple[str, ...] = ()) -> dict[str, Any]:
    return blueprint(job, OPTIONS, avoided).pod(3)


def trainer_of(job: TrainingJob) -> dict[str, Any]:
    containers: list[dict[str, Any]] = pod_of(job)["spec"]["containers"]
    return next(each for each in containers if "command" in each)


def test_a_pod_is_named_labelled_and_owned() -> None:
    metadata = pod_of(job_of(metadata={"labels": {"team": "nlp"}, "annotations": {"note": "x"}}))["metadata"]
    assert (metadata["name"], metadata["namespace"]) == ("gpt-3", "research")
    assert metadata["labels"] == {
        "holdfast.dev/job": "gpt",
        "holdfast.dev/member": "gpt-3",
        "app.kubernetes.io/name": "trainingjob",
        "app.kubernetes.io/instance": "gpt",
        "app.kubernetes.io/managed-by": "holdfast",
        "team": "nlp",
    }
    assert metadata["annotations"]["note"] == "x"
    assert metadata["ownerReferences"] == [
        {
            "apiVersion": "holdfast.dev/v1alpha1",
            "kind": "TrainingJob",
            "name": "gpt",
            "uid": UID,
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]


def test_a_users_own_recommended_labels_stay() -> None:
    metadata = pod_of(job_of(metadata={"labels": {"app.kubernetes.io/name": "gpt-trainer"}}))["metadata"]
    assert metadata["labels"]["app.kubernetes.io/name"] == "gpt-trainer"


def test_quick_ends_before_it_are_written_on_a_pod() -> None:
    pods = blueprint(job_of(), OPTIONS)
    assert pods.pod(3, quick_ends=2)["metadata"]["annotations"]["holdfast.dev/quick-ends"] == "2"
    assert "holdfast.dev/quick-ends" not in pods.pod(4)["metadata"]["annotations"]


def test_a_pod_is_never_started_again_and_has_its_members_host_name() -> None:
    spec = pod_of(job_of())["spec"]
    assert (spec["restartPolicy"], spec["hostname"], spec["subdomain"]) == ("Never", "gpt-3", "gpt")


def test_the_trainer_runs_the_launcher_with_the_entrypoint() -> None:
    job = job_of(
        entrypoint=["train.py", "--price", "$5", "$(HOME)", "--note", ""],
        processesPerNode=8,
        faultPolicy={"heartbeat": {"interval": "500ms", "lost": "2s"}},
    )
    assert trainer_of(job)["command"] == [
        *("python3", "/opt/holdfast/launch"),
        *("--rdzv-endpoint", "holdfast-watchdog.holdfast.svc:7077", "--rdzv-id", "research/gpt"),
        *("--member", "$(HOLDFAST_MEMBER)", "--node", "$(HOLDFAST_NODE)", "--local-addr", "$(HOLDFAST_POD_IP)"),
        *("--run-dir", "/var/run/holdfast", "--token-file", "/var/run/secrets/holdfast/token"),
        *("--nproc-per-node", "8", "--leave-grace", "25", "--heartbeat-interval", "0.5"),
        *("train.py", "--price", "$$5", "$$(HOME)", "--note", ""),
    ]


def test_what_is_imported_beforehand_is_passed_on_where_the_job_says_it() -> None:
    command = trainer_of(job_of(startup={"preload": ["transformers", "learned"]}))["command"]
    assert command[command.index("--preload") + 1] == "transformers,learned"
    assert "--preload" not in trainer_of(job_of())["command"], "an earlier image knows no such flag"


@pytest.mark.parametrize(("grace_s", "expected"), [(0, "0"), (3, "0"), (600, "595")])
def test_the_launcher_leaves_before_its_pod_is_killed(grace_s: int, expected: str) -> None:
    command = trainer_of(job_of({"terminationGracePeriodSeconds": grace_s}))["command"]
    assert command[command.index("--leave-grace") + 1] == expected


def test_gpus_of_the_pod_are_the_processes() -> None:
    limits = {"resources": {"limits": {"nvidia.com/gpu": 4}}}
    command = trainer_of(job_of({"containers": [{"name": "trainer", **limits}]}))["command"]
    assert command[command.index("--nproc-per-node") + 1] == "4"


def test_what_a_user_gave_the_trainer_stays_beside_what_is_added() -> None:
    given = {
        "name": "trainer",
        "image": "registry.example/train:1",
        "args": [],
        "workingDir": "/work",
        "env": [{"name": "WANDB_MODE", "value": "$(HOLDFAST_MEMBER)"}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    job = job_of({"containers": [{"name": "sidecar"}, given], "volumes": [{"name": "data", "emptyDir": {}}]})
    pod = pod_of(job)["spec"]
    assert pod["containers"][0] == {"name": "sidecar"}
    trainer = pod["containers"][1]
    assert (trainer["image"], trainer["workingDir"]) == ("registry.example/train:1", "/work")
    assert "args" not in trainer
    assert [each["name"] for each in trainer["env"]] == [
        *("HOLDFAST_MEMBER", "HOLDFAST_NODE", "HOLDFAST_POD_IP", "HOLDFAST_IMAGE", "WANDB_MODE")
    ]
    assert {each["name"] for each in trainer["env"][:4]} <= RESERVED_ENVIRONMENT
    assert trainer["env"][3]["value"] == trainer["image"], "a round can tell what it was made of"
    assert {each["mountPath"]: each["name"] for each in trainer["volumeMounts"]} == {
        "/data": "data",
        "/opt/holdfast": "holdfast-launcher",
        "/var/run/holdfast": "holdfast-run",
        "/var/run/secrets/holdfast": "holdfast-token",
        "/dev/shm": "holdfast-shm",
    }
    assert [each["name"] for each in pod["volumes"]] == [
        *("data", "holdfast-launcher", "holdfast-run", "holdfast-token", "holdfast-shm")
    ]


def test_the_first_container_trains_when_none_is_named_trainer() -> None:
    spec = pod_of(job_of({"containers": [{"name": "main"}, {"name": "sidecar"}]}))["spec"]
    assert ["command" in each for each in spec["containers"]] == [True, False]


def test_the_launcher_comes_by_an_init_container_before_the_users_own() -> None:
    first, second = pod_of(job_of({"initContainers": [{"name": "fetch"}]}))["spec"]["initContainers"]
    assert second == {"name": "fetch"}
    assert (first["name"], first["image"]) == ("holdfast-launcher", OPTIONS.launcher_image)
    assert first["command"] == ["/install", "/opt/holdfast"]
    security = first["securityContext"]
    assert security["runAsNonRoot"]
    assert security["runAsUser"] > 0
    assert security["readOnlyRootFilesystem"]
    assert not security["allowPrivilegeEscalation"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}


def test_the_token_is_for_the_watchdog_alone_and_lives_an_hour() -> None:
    volumes = {each["name"]: each for each in pod_of(job_of())["spec"]["volumes"]}
    (source,) = volumes["holdfast-token"]["projected"]["sources"]
    assert source == {"serviceAccountToken": {"audience": "holdfast", "expirationSeconds": 3600, "path": "token"}}


def shared_memory_of(job: TrainingJob) -> list[dict[str, Any]]:
    return [each["emptyDir"] for each in pod_of(job)["spec"]["volumes"] if each["name"] == "holdfast-shm"]


def test_shared_memory_is_as_large_as_asked_for() -> None:
    size = {"holdfast.dev/shm-size": "64Gi"}
    assert shared_memory_of(job_of()) == [{"medium": "Memory"}]
    assert shared_memory_of(job_of(metadata={"annotations": size})) == [{"medium": "Memory", "sizeLimit": "64Gi"}]


def test_a_users_own_shared_memory_is_used() -> None:
    mounted = {"name": "trainer", "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm/"}]}
    job = job_of({"containers": [mounted], "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}]})
    assert shared_memory_of(job) == []
    assert [each["mountPath"] for each in trainer_of(job)["volumeMounts"]].count("/dev/shm") == 0


def test_what_is_not_holdfasts_business_passes_through() -> None:
    given = {
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "serviceAccountName": "trainer",
        "hostNetwork": True,
        "aFieldOfTheFuture": {"x": 1},
    }
    spec = pod_of(job_of(given))["spec"]
    assert {key: spec[key] for key in given} == given


@pytest.mark.parametrize(
    ("given", "policy"),
    [
        ({}, None),
        ({"hostNetwork": True}, "ClusterFirstWithHostNet"),
        ({"hostNetwork": True, "dnsPolicy": "None"}, "None"),
    ],
)
def test_a_pod_on_the_hosts_network_finds_the_watchdogs_name(given: dict[str, Any], policy: str | None) -> None:
    assert pod_of(job_of(given))["spec"].get("dnsPolicy") == policy


def test_a_name_server_that_is_gone_is_not_waited_for_unless_the_template_says_how_names_are_found() -> None:
    assert {"name": "timeout", "value": "1"} in pod_of(job_of({}))["spec"]["dnsConfig"]["options"]
    own = {"nameservers": ["10.0.0.10"]}
    assert pod_of(job_of({"dnsPolicy": "None", "dnsConfig": own}))["spec"]["dnsConfig"] == own


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"serviceAccountName": "default"}),
        ({"serviceAccountName": "trainer"}, {"serviceAccountName": "trainer"}),
        ({"serviceAccount": "trainer"}, {"serviceAccount": "trainer"}),
    ],
)
def test_the_token_is_of_the_users_account_or_else_of_the_default_one(
    given: dict[str, str], expected: dict[str, str]
) -> None:
    spec = pod_of(job_of(given))["spec"]
    assert {key: spec[key] for key in ("serviceAccount", "serviceAccountName") if key in spec} == expected


def test_the_template_is_not_changed_and_pods_differ_only_by_name() -> None:
    job = job_of()
    before = job.model_dump_json()
    pods = blueprint(job, OPTIONS)
    one, other = pods.pod(1), pods.pod(2)
    assert job.model_dump_json() == before
    assert str(one).replace("gpt-1", "gpt-2") == str(other)


def test_a_pods_number_is_read_back_from_its_name() -> None:
    assert ordinal_of("gpt", pod_name("gpt", 12_499)) == 12_499
    for name in ("gpt", "gpt-", "gpt-x", "gpt-1-2", "other-1", "gpt-²"):
        assert ordinal_of("gpt", name) is None
    assert ordinal_of("gpt-1", "gpt-1-2") == 2


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
ALONE = {"labelSelector": {"matchLabels": {"holdfast.dev/job": "gpt"}}, "topologyKey": "kubernetes.io/hostname"}
AWAY = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n1", "n2"]}


def affinity_of(job: TrainingJob, avoided: tuple[str, ...] = ()) -> dict[str, Any]:
    affinity: dict[str, Any] = pod_of(job, avoided)["spec"]["affinity"]
    return affinity


def test_members_go_one_per_node() -> None:
    assert affinity_of(job_of()) == {"podAntiAffinity": {REQUIRED: [ALONE]}}


def test_avoided_nodes_are_kept_away_from() -> None:
    found = affinity_of(job_of(), ("n2", "n1"))
    assert found["nodeAffinity"] == {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [AWAY]}]}}


def test_every_alternative_of_a_users_affinity_keeps_away_too() -> None:
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    field = {"key": "metadata.name", "operator": "In", "values": ["n9"]}
    terms = [{"matchExpressions": [zone]}, {"matchFields": [field]}, {"matchExpressions": None}]
    wish = [{"weight": 1, "preference": {"matchExpressions": [zone]}}]
    given = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}, PREFERRED: wish}}
    found = affinity_of(job_of({"affinity": given}), ("n1", "n2"))["nodeAffinity"]
    assert found[PREFERRED] == wish
    assert found[REQUIRED]["nodeSelectorTerms"] == [
        {"matchExpressions": [zone, AWAY]},
        {"matchFields": [field], "matchExpressions": [AWAY]},
        {"matchExpressions": [AWAY]},
    ]
    assert affinity_of(job_of({"affinity": given}))["nodeAffinity"] == given["nodeAffinity"]


def test_a_users_wishes_for_pods_stay_beside_ours() -> None:
    other = {"labelSelector": {"matchLabels": {"app": "db"}}, "topologyKey": "zone"}
    wish = {"weight": 7, "podAffinityTerm": other}
    given = {"podAntiAffinity": {REQUIRED: [other]}, "podAffinity": {PREFERRED: [wish], REQUIRED: None}}
    found = affinity_of(job_of({"affinity": given}, placement={"pack": ["nvlink", "rack", "row"]}))
    assert found["podAntiAffinity"][REQUIRED] == [other, ALONE]
    assert found["podAffinity"][PREFERRED][0] == wish
    added = found["podAffinity"][PREFERRED][1:]
    assert [(each["weight"], each["podAffinityTerm"]["topologyKey"]) for each in added] == [
        *((100, "nvlink"), (50, "rack"), (25, "row"))
    ]


def test_even_the_last_of_many_domains_weighs_something() -> None:
    found = affinity_of(job_of(placement={"pack": [f"level-{number}" for number in range(9)]}))
    assert min(each["weight"] for each in found["podAffinity"][PREFERRED]) == 1


def test_a_pod_is_told_who_signs_for_an_encrypted_watchdog() -> None:
    terms = msgspec.structs.replace(OPTIONS, watchdog_ca="-----BEGIN CERTIFICATE-----")
    containers = blueprint(job_of(), terms, ()).pod(3)["spec"]["containers"]
    environment = next(each for each in containers if "command" in each)["env"]
    assert {"name": "HOLDFAST_WATCHDOG_CA", "value": "-----BEGIN CERTIFICATE-----"} in environment
    assert "HOLDFAST_WATCHDOG_CA" not in {each["name"] for each in trainer_of(job_of())["env"]}
