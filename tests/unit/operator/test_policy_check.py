"""How a changed policy stands that is checked before it takes effect, and what the watchdog is told meanwhile."""

from typing import Any

import msgspec
import pytest
from operator_builders import (
    JOB_ID,
    NOW,
    OPTIONS,
    TEMPLATE,
    UID,
    actions_of,
    document,
    job_object,
    nodes,
    observed,
    plan,
    report,
    spec_of,
)

from holdfast.api.decoding import decode_json
from holdfast.api.jobstatus import Condition, TrainingJobStatus
from holdfast.api.judgement import Brief, Judgement
from holdfast.api.plan import JobReport
from holdfast.api.policy import JUDGED, Policy
from holdfast.api.status import JobPhase
from holdfast.api.trainingjob import PolicyCheck, TrainingJob, policy_of
from holdfast.cli.simulation.scenariofile import draft_of
from holdfast.operator.decide.action import CreatePod, EndCheck, StartCheck, Submit
from holdfast.operator.decide.checkpod import CONTAINER, POLICY, checking, found_by, pod_name
from holdfast.operator.decide.context import NO_CHECK_IMAGE
from holdfast.operator.decide.observed import Mode, Observed, Outcome
from holdfast.operator.decide.pods import ordinal_of
from holdfast.operator.decide.policycheck import LATE_S, Change
from holdfast.operator.decide.reconcile import reconcile
from holdfast.operator.kube.objects import (
    CHANGE,
    CHECK_LABEL,
    JOB_LABEL,
    ContainerState,
    ContainerStatus,
    Metadata,
    OwnerReference,
    Pod,
    PodSpec,
    PodStatus,
    Terminated,
    text_of,
)

CHECKS = msgspec.structs.replace(OPTIONS, check_image="registry.example/operator:1", check_s=600.0)
BEFORE = {"faultPolicy": {"heartbeat": {"interval": "1s", "lost": "5s"}}}
AFTER = {"faultPolicy": {"heartbeat": {"interval": "2s", "lost": "9s"}}}
WORSE = Brief(Judgement.WORSE, "", 3.2, 12, 20, 14.0, 120.0, 300.0, "USD", 2.0, 0.0, "lost_gpu_hours", 120.0, 4.0)
BETTER = msgspec.structs.replace(WORSE, says=Judgement.BETTER, minutes=-14.0)
NOISE = msgspec.structs.replace(WORSE, says=Judgement.NOISE)
UNJUDGED = Brief(Judgement.NOT_JUDGED, "nothing has failed")


def job_of(mode: str, generation: int = 2, **spec: Any) -> TrainingJob:
    read = spec_of(document(generation=generation, policyCheck=mode, **{**AFTER, **spec}))
    assert isinstance(read, TrainingJob), read
    return read


def in_force(job: TrainingJob | None = None, *, held: bool = False, **told: Any) -> JobReport:
    """The watchdog's report with the policy of BEFORE, or of `job`."""
    if job is None:
        job = job_of("none", 1, **BEFORE)
    policy = msgspec.structs.replace(policy_of(job), held=held)
    if held:
        policy = msgspec.structs.replace(policy, generation=2)
    found: JobReport = msgspec.structs.replace(report(generation=policy.generation, **told), policy=policy)
    return found


def change_of(job: TrainingJob) -> str:
    return Change(PolicyCheck.WARN, policy_of(job), None, has_trained=True).digest


def check_pod(
    job: TrainingJob,
    said: Brief | str | None = None,
    *,
    deleted: bool = False,
    age_s: float = 5.0,
    reason: str = "",
) -> Pod:
    """The pod that tries the job's policy; with `said` it has ended, and those are its last words."""
    change = change_of(job)
    words = msgspec.json.encode(said).decode() if isinstance(said, Brief) else said or ""
    code = int(isinstance(said, str) or (said is not None and said.says is Judgement.WORSE))
    end = None if said is None else Terminated(code, "Error" if code else "Completed", words)
    phase = "Running" if said is None else "Failed" if code else "Succeeded"
    return Pod(
        Metadata(
            pod_name("gpt", change),
            "research",
            f"uid-of-{change}",
            labels={CHECK_LABEL: "gpt"},
            annotations={CHANGE: change},
            creation_timestamp=text_of(NOW - age_s),
            deletion_timestamp=text_of(NOW) if deleted else None,
            owner_references=(OwnerReference(UID, controller=True),),
        ),
        PodSpec("n0"),
        PodStatus(
            phase,
            reason=reason,
            container_statuses=(ContainerStatus(CONTAINER, ContainerState(terminated=end)),),
        ),
    )


def seen(job: TrainingJob, *pods: Pod, told: JobReport | None = None, status: Any = None, **more: Any) -> Observed:
    about = job_object(generation=job.metadata.generation or 0, status=status)
    return observed(job=about, spec=job, report=told or in_force(), checks=pods, **more)


def condition(outcome: Outcome) -> Condition:
    assert outcome.status is not None
    found = TrainingJobStatus.decode(outcome.status).condition("PolicyChecked")
    assert found is not None
    return found


def submitted(outcome: Outcome) -> Policy:
    (action,) = actions_of(outcome, Submit)
    policy: Policy = action.policy
    return policy


def events(outcome: Outcome) -> list[str]:
    return [each.reason for each in outcome.events if each.reason.startswith("Policy")]


def test_without_a_check_a_changed_policy_takes_effect_at_once() -> None:
    outcome = reconcile(seen(job_of("none")), CHECKS, NOW)
    assert (submitted(outcome).lost_after_s, submitted(outcome).held) == (9.0, False)
    assert actions_of(outcome, StartCheck) == []
    assert (condition(outcome).status, condition(outcome).reason) == ("Unknown", "NotAsked")


@pytest.mark.parametrize("mode", ["warn", "require"])
def test_a_changed_policy_is_tried_first_and_everything_else_takes_effect(mode: str) -> None:
    job = job_of(mode, nodes={"min": 1, "max": 3})
    outcome = reconcile(seen(job), CHECKS, NOW)
    policy = submitted(outcome)
    assert (policy.lost_after_s, policy.heartbeat_interval_s, policy.held) == (5.0, 1.0, True)
    assert (policy.nodes_max, policy.generation) == (3, 2)
    (check,) = actions_of(outcome, StartCheck)
    assert check.pod["metadata"]["annotations"][CHANGE] == change_of(job)
    assert (condition(outcome).status, condition(outcome).reason) == ("False", "Checking")
    assert events(outcome) == ["PolicyCheckStarted"]


def test_what_is_under_way_is_not_begun_again_and_not_submitted_again() -> None:
    job = job_of("require")
    outcome = reconcile(seen(job, check_pod(job), told=in_force(held=True)), CHECKS, NOW)
    assert actions_of(outcome, StartCheck) == actions_of(outcome, Submit) == actions_of(outcome, EndCheck) == []
    assert outcome.requeue_after_s is not None
    assert outcome.requeue_after_s <= 600.0 + LATE_S


@pytest.mark.parametrize("mode", ["warn", "require"])
@pytest.mark.parametrize(
    ("found", "reason"), [(BETTER, "Better"), (NOISE, "Noise"), (UNJUDGED, "NotJudged"), (WORSE, "Worse")]
)
def test_what_is_no_worse_takes_effect_and_what_is_worse_only_with_warn(
    mode: str, found: Brief, reason: str
) -> None:
    job = job_of(mode)
    outcome = reconcile(seen(job, check_pod(job, found), told=in_force(held=True)), CHECKS, NOW)
    now = condition(outcome)
    assert now.reason == reason
    if (mode, reason) == ("require", "Worse"):
        assert actions_of(outcome, Submit) == actions_of(outcome, EndCheck) == []
        assert now.status == "False"
        for part in (
            "+14.0 minutes",
            "+120.0 GPU-hours",
            "+300.0 USD",
            "+2.0 evictions",
            "4.0 beside",
            "held back",
            "warn",
        ):
            assert part in now.message
        assert events(outcome) == ["PolicyHeld"]
    else:
        assert (submitted(outcome).lost_after_s, submitted(outcome).held) == (9.0, False)
        assert now.status == "True"
        assert actions_of(outcome, EndCheck) == [], "it is the record until that is told"
        assert events(outcome) == ["PolicyChecked"]


@pytest.mark.parametrize("mode", ["warn", "require"])
@pytest.mark.parametrize(
    "failure", ["it said why", "{} is no judgement", "late", "deadline", "refused", "image"], ids=str
)
def test_a_check_that_fails_or_cannot_be_made_holds_only_with_require(mode: str, failure: str) -> None:
    job, options, more = job_of(mode), CHECKS, {}
    pods: tuple[Pod, ...] = (check_pod(job, failure),)
    match failure:
        case "late":
            pods = (check_pod(job, age_s=600.0 + LATE_S),)
        case "deadline":
            pods = (check_pod(job, "", reason="DeadlineExceeded"),)
        case "refused":
            pods, more = (), {"check_refused": {change_of(job): "exceeded quota: compute"}}
        case "image":
            pods, options = (), OPTIONS
    outcome = reconcile(seen(job, *pods, told=in_force(held=True), **more), options, NOW)
    now = condition(outcome)
    assert now.reason == "CheckFailed"
    says = {
        "it said why": "exit code 1: it said why",
        "{} is no judgement": "cannot be read",
        "late": "not done after 600 s",
        "deadline": "DeadlineExceeded",
        "refused": "exceeded quota: compute",
        "image": NO_CHECK_IMAGE,
    }
    assert says[failure] in now.message
    if mode == "warn":
        assert submitted(outcome).lost_after_s == 9.0
        assert now.status == "Unknown"
        assert events(outcome) == ["PolicyChecked"]
    else:
        assert actions_of(outcome, Submit) == []
        assert now.status == "False"
        assert len(actions_of(outcome, StartCheck)) == (failure == "refused"), "it is tried again"


def test_what_was_refused_once_and_is_made_is_checked_after_all() -> None:
    job = job_of("require")
    outcome = reconcile(
        seen(job, check_pod(job), told=in_force(held=True), check_refused={change_of(job): "a quota"}), CHECKS, NOW
    )
    assert condition(outcome).reason == "Checking"


def test_what_was_said_against_one_change_is_not_said_of_the_next() -> None:
    job = job_of("warn")
    outcome = reconcile(seen(job, told=in_force(held=True), check_refused={"another": "a quota"}), CHECKS, NOW)
    assert condition(outcome).reason == "Checking"
    assert len(actions_of(outcome, StartCheck)) == 1


def test_a_second_change_takes_the_place_of_the_first() -> None:
    first = job_of("require")
    second = job_of("require", 3, faultPolicy={"heartbeat": {"lost": "20s"}})
    outcome = reconcile(seen(second, check_pod(first, BETTER), told=in_force(held=True)), CHECKS, NOW)
    assert [each.uid for each in actions_of(outcome, EndCheck)] == [f"uid-of-{change_of(first)}"]
    assert [each.pod["metadata"]["annotations"][CHANGE] for each in actions_of(outcome, StartCheck)] == [
        change_of(second)
    ]
    assert (submitted(outcome).lost_after_s, submitted(outcome).held, submitted(outcome).generation) == (
        5.0,
        True,
        3,
    )


def test_a_change_that_is_taken_back_ends_its_check() -> None:
    back, changed = job_of("require", 3, **BEFORE), job_of("require")
    held = TrainingJobStatus(conditions=(Condition("PolicyChecked", "False", "Worse", "so much"),)).encode()
    outcome = reconcile(seen(back, check_pod(changed, WORSE), told=in_force(held=True), status=held), CHECKS, NOW)
    assert len(actions_of(outcome, EndCheck)) == 1
    assert (submitted(outcome).lost_after_s, submitted(outcome).held) == (5.0, False)
    assert (condition(outcome).status, condition(outcome).reason) == ("True", "InForce")


@pytest.mark.parametrize("mode", ["warn", "none"])
def test_what_is_held_takes_effect_when_it_is_not_required_any_more(mode: str) -> None:
    job = job_of(mode, 3)
    outcome = reconcile(seen(job, check_pod(job, WORSE), told=in_force(held=True)), CHECKS, NOW)
    assert (submitted(outcome).lost_after_s, submitted(outcome).held) == (9.0, False)
    assert actions_of(outcome, StartCheck) == []


def test_an_operator_that_comes_after_the_change_took_effect_tells_what_was_found_and_then_ends_the_pod() -> None:
    job = job_of("require")
    begun = TrainingJobStatus(conditions=(Condition("PolicyChecked", "False", "Checking"),)).encode()
    first = seen(job, check_pod(job, BETTER), told=in_force(job), status=begun)
    outcome = reconcile(first, CHECKS, NOW)
    assert (condition(outcome).status, condition(outcome).reason) == ("True", "Better")
    assert actions_of(outcome, Submit) == actions_of(outcome, EndCheck) == []
    again = msgspec.structs.replace(first, job=job_object(generation=2, status=outcome.status))
    outcome = reconcile(again, CHECKS, NOW)
    assert len(actions_of(outcome, EndCheck)) == 1
    assert events(outcome) == []
    assert outcome.status is None, "what was found stays told"


def test_a_pod_that_is_on_its_way_out_is_waited_for() -> None:
    job = job_of("require")
    outcome = reconcile(seen(job, check_pod(job, WORSE, deleted=True), told=in_force(held=True)), CHECKS, NOW)
    assert actions_of(outcome, StartCheck) == actions_of(outcome, EndCheck) == []
    assert condition(outcome).reason == "Checking"


def test_of_a_job_that_has_trained_no_step_nothing_is_tried() -> None:
    outcome = reconcile(seen(job_of("require"), told=in_force(step=None)), CHECKS, NOW)
    assert submitted(outcome).lost_after_s == 9.0
    assert actions_of(outcome, StartCheck) == []
    assert (condition(outcome).status, condition(outcome).reason) == ("True", "NotJudged")


def test_a_suspended_job_has_no_checking_pod_and_keeps_the_policy_of_before() -> None:
    job = job_of("require", suspend=True)
    outcome = reconcile(seen(job, check_pod(job, BETTER)), CHECKS, NOW)
    assert (submitted(outcome).suspend, submitted(outcome).held, submitted(outcome).lost_after_s) == (
        True,
        True,
        5.0,
    )
    assert len(actions_of(outcome, EndCheck)) == 1
    assert condition(outcome).reason == "Waiting"


@pytest.mark.parametrize("how", ["succeeded", "deleted"])
def test_a_job_that_ends_leaves_no_checking_pod(how: str) -> None:
    job = job_of("require")
    told = in_force(held=True, phase=JobPhase.SUCCEEDED if how == "succeeded" else JobPhase.RUNNING)
    looked = seen(job, check_pod(job), told=told)
    if how == "deleted":
        looked = msgspec.structs.replace(looked, job=job_object(generation=2, deleted_at=NOW))
    assert len(actions_of(reconcile(looked, CHECKS, NOW), EndCheck)) == 1


def test_a_deleted_job_saves_under_the_policy_in_force() -> None:
    looked = msgspec.structs.replace(seen(job_of("require")), job=job_object(generation=2, deleted_at=NOW))
    policy = submitted(reconcile(looked, CHECKS, NOW))
    assert (policy.suspend, policy.lost_after_s) == (True, 5.0)


def test_nothing_begins_while_the_watchdog_is_away_or_before_it_has_told() -> None:
    away = seen(job_of("require"), heard_age_s=30.0)
    assert actions_of(reconcile(away, CHECKS, NOW), StartCheck) == []
    job = job_of("require")
    unheard = msgspec.structs.replace(seen(job, check_pod(job)), report=None, plan=None)
    outcome = reconcile(unheard, CHECKS, NOW)
    assert actions_of(outcome, EndCheck) == [], "a leader that has just begun"


def test_an_operator_that_only_observes_makes_no_pod() -> None:
    observing = msgspec.structs.replace(CHECKS, mode=Mode.OBSERVE)
    assert reconcile(seen(job_of("require")), observing, NOW).actions == ()


def test_what_an_operator_of_another_version_reads_into_the_same_spec_is_no_change() -> None:
    """Defaults change between versions; the spec has not."""
    outcome = reconcile(seen(job_of("require", 1)), CHECKS, NOW)
    assert actions_of(outcome, Submit) == actions_of(outcome, StartCheck) == []


def test_pods_of_a_job_beat_as_the_policy_in_force_has_it() -> None:
    looked = seen(job_of("require"), told=in_force(held=True), pods=(), plan=plan(1), nodes=nodes())
    (create,) = actions_of(reconcile(looked, CHECKS, NOW), CreatePod)
    command = create.manifest["spec"]["containers"][0]["command"]
    assert command[command.index("--heartbeat-interval") + 1] == "1"


# The pod.


def test_the_pod_may_read_this_job_and_nothing_else_and_is_bounded() -> None:
    job = job_of("require", template={"spec": {**TEMPLATE["spec"], "imagePullSecrets": [{"name": "pull"}]}})
    check = checking(job, msgspec.structs.replace(CHECKS, watchdog_ca="PEM"), "abc")
    assert check.role["rules"] == [
        {"apiGroups": ["holdfast.dev"], "resources": ["trainingjobs"], "resourceNames": ["gpt"], "verbs": ["get"]}
    ]
    names = {each["metadata"]["name"] for each in (check.account, check.role, check.binding, check.pod)}
    assert names == {check.pod["spec"]["serviceAccountName"]} == {"gpt-abc-check"}
    assert {each["metadata"]["ownerReferences"][0]["uid"] for each in (check.account, check.role, check.pod)} == {
        UID
    }
    spec = check.pod["spec"]
    assert spec["activeDeadlineSeconds"] == 600
    assert spec["automountServiceAccountToken"] is False
    assert spec["imagePullSecrets"] == [{"name": "pull"}]
    container = spec["containers"][0]
    assert set(container["resources"]["limits"]) == {"cpu", "memory", "ephemeral-storage"}
    assert container["command"][:8] == [
        *(
            "python3",
            "-m",
            "holdfast.cli",
            "simulate",
            "--job",
            JOB_ID,
            "--policy",
            "/etc/holdfast/check/changed.yaml",
        )
    ]
    assert "--ca-file" in container["command"]


def test_the_pod_is_no_member_by_label_or_name() -> None:
    manifest = checking(job_of("require"), CHECKS, "0123456789").pod
    assert JOB_LABEL not in manifest["metadata"]["labels"]
    for other in ("gpt", "gpt-0123456789"):
        assert ordinal_of(other, manifest["metadata"]["name"]) is None


def test_the_file_of_the_pod_is_the_policy_of_the_spec(tmp_path: Any) -> None:
    given: dict[str, Any] = {
        "nodes": {"min": 2, "max": 4, "spares": 1},
        "suspend": True,
        "parallelism": {"tensor": 2},
        "template": {
            "spec": {
                "containers": [
                    {**TEMPLATE["spec"]["containers"][0], "resources": {"limits": {"nvidia.com/gpu": 8}}}
                ]
            }
        },
        "checkpoint": {"interval": "10m", "uri": "s3://runs/gpt"},
        "faultPolicy": {
            "xid": {"79": "Restart"},
            "loss": {"rewindAfter": "80steps"},
            "budget": {"clusterFraction": "10%"},
        },
    }
    job = job_of("require", **given)
    file = tmp_path / "changed.yaml"
    file.write_text(checking(job, CHECKS, "abc").pod["metadata"]["annotations"][POLICY])
    tried = draft_of(file).policy()
    assert tried.judged() == policy_of(job).judged()
    assert (tried.nodes_max, tried.processes_per_node, tried.suspend) == (4, 8, False)


def test_last_words_are_read_and_what_cannot_be_read_is_said() -> None:
    job = job_of("require")
    assert found_by(check_pod(job)) is None
    assert found_by(check_pod(job, WORSE)) == WORSE
    assert decode_json(msgspec.json.encode(WORSE), Brief) == WORSE
    assert "exit code 1" in str(found_by(check_pod(job, "no such job")))
    assert "cannot be read" in str(found_by(check_pod(job, '{"says": "splendid"}')))


def test_every_field_of_a_policy_is_judged_or_takes_effect_at_once() -> None:
    at_once = {
        *("job", "uid", "generation", "suspend", "admitted", "held", "team", "expects", "observe"),
        *("nodes_min", "nodes_max", "processes_per_node", "model_ranks", "tensor", "context", "replica_nodes"),
        *("checkpoint_uri", "keep", "preflight", "links", "reporting", "flops"),
        *("gpu_hour", "prices", "budget", "form_grace_s", "save_grace_s", "drain_grace_s"),
        *("cordon_on", "cluster_xid_actions"),
    }
    assert set(Policy.__struct_fields__) == at_once | set(JUDGED)
    assert not at_once & set(JUDGED)
