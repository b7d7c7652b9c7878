"""What Holdfast's own containers ask for beside the user's, and how an installation says it."""

import json
from typing import Any

import msgspec
import pytest
import yaml
from helmchart import CHART
from operator_builders import OPTIONS
from test_podbuilder import job_of

from holdfast.api.errors import InvalidInput
from holdfast.operator.decide.allowance import CHECKS_POLICY, COPIES_LAUNCHER, Allowance, beside, read_allowance
from holdfast.operator.decide.checkpod import checking
from holdfast.operator.decide.podbuilder import blueprint

QUOTA = ("cpu", "memory", "ephemeral-storage")
"""What a quota without a limit range may ask of every container, as limits and as requests."""


def launcher_of(*containers: dict[str, Any], **pod: Any) -> dict[str, Any]:
    """The resources of the init container in a pod of a job with these containers."""
    named = [{"name": f"c{place}", "image": "x", "resources": each} for place, each in enumerate(containers)]
    made = blueprint(job_of({"containers": named, **pod}), OPTIONS).pod(0)
    resources: dict[str, Any] = made["spec"]["initContainers"][0]["resources"]
    return resources


@pytest.mark.parametrize("amounts", ["requests", "limits"])
def test_every_container_of_ours_has_what_a_quota_counts(amounts: str) -> None:
    whole = {"cpu": "8", "memory": "64Gi", "ephemeral-storage": "10Gi"}
    assert set(launcher_of({"limits": whole})[amounts]) == set(QUOTA)
    checked = checking(job_of(), msgspec.structs.replace(OPTIONS, check_image="operator:1"), "change")
    (container,) = checked.pod["spec"]["containers"]
    assert set(container["resources"][amounts]) == set(QUOTA)


@pytest.mark.parametrize("limits", [{}, {"cpu": "8"}, {"nvidia.com/gpu": 8, "memory": "64Gi"}])
def test_ours_is_never_the_only_limit_of_a_disk_which_would_have_the_trainer_evicted(
    limits: dict[str, Any],
) -> None:
    assert "ephemeral-storage" not in launcher_of({"limits": limits})["limits"]
    assert (
        "ephemeral-storage" in launcher_of({"limits": limits}, {"limits": {"ephemeral-storage": "1Gi"}})["limits"]
    )


def test_a_pod_of_the_class_guaranteed_stays_one() -> None:
    whole = {"cpu": "8", "memory": "64Gi"}
    for trainer in ({"limits": whole}, {"limits": whole, "requests": {"cpu": "8000m", "memory": "65536Mi"}}):
        ours = launcher_of(trainer)
        assert all(ours["requests"][name] == ours["limits"][name] for name in ("cpu", "memory"))
    for trainer in ({}, {"limits": {"cpu": "8"}}, {"limits": whole, "requests": {"cpu": "4"}}):
        assert launcher_of(trainer) == beside(COPIES_LAUNCHER, [{}])
    sidecar = {"name": "log", "image": "x", "restartPolicy": "Always"}
    assert launcher_of({"limits": whole}, initContainers=[sidecar]) == beside(COPIES_LAUNCHER, [{}])


def test_ours_has_no_more_than_the_whole_pod() -> None:
    small = {"requests": {"cpu": "20m", "memory": "32Mi"}, "limits": {"cpu": 0.5, "memory": "200Mi"}}
    ours = launcher_of({}, resources=small)
    assert (ours["requests"]["cpu"], ours["requests"]["memory"]) == ("20m", "32Mi")
    assert (ours["limits"]["cpu"], ours["limits"]["memory"]) == ("0.5", "200Mi")
    assert launcher_of({}, resources={"limits": {"memory": "48Mi"}})["requests"]["memory"] == "48Mi"
    for ample in ({"limits": {"cpu": "96", "memory": "1Ti"}}, {"requests": None, "limits": None}, {}):
        assert launcher_of({}, resources=ample) == beside(COPIES_LAUNCHER, [{}])


def test_an_installation_says_others() -> None:
    said = read_allowance('{"limits": {"cpu": "250m"}}', "--launcher-resources", COPIES_LAUNCHER)
    assert beside(said, [{}]) == {"limits": {"cpu": "250m"}}
    assert read_allowance("", "--launcher-resources", COPIES_LAUNCHER) is COPIES_LAUNCHER
    assert read_allowance("{}", "--launcher-resources", COPIES_LAUNCHER) == Allowance()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("cpu=1", "--launcher-resources: 'cpu=1' is not accepted; write JSON such as"),
        ('{"limit": {"cpu": "1"}}', "unknown field `limit`"),
        ('{"limits": {"cpu": 1}}', "Expected `str`"),
        (
            '{"limits": {"cpu": "much"}}',
            "--launcher-resources limits.cpu: 'much' is not accepted; write a quantity",
        ),
        ('{"requests": {"cpu": "-1"}}', "--launcher-resources requests.cpu: '-1' is not accepted"),
        (
            '{"requests": {"memory": "1Gi"}, "limits": {"memory": "512Mi"}}',
            "requests.memory: '1Gi' is not accepted",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(text: str, says: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_allowance(text, "--launcher-resources", COPIES_LAUNCHER)
    assert says in str(refused.value)


def test_the_chart_says_what_the_operator_has_by_itself() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    launcher, check = values["launcher"]["resources"], values["operator"]["policyChecks"]["resources"]
    assert read_allowance(json.dumps(launcher), "chart", Allowance()) == COPIES_LAUNCHER
    assert read_allowance(json.dumps(check), "chart", Allowance()) == CHECKS_POLICY
