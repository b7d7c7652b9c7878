"""What the chart makes of its values, without a server."""

import json
import re
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from helm_python import Chart, HelmError
from helm_python.chart import lint
from helmchart import CHART, Manifest, Values, named, notes, one, rendered

from holdfast.agent.readiness import ASK_S
from holdfast.agent.settings import parse_settings
from holdfast.cli.cluster.proxiedline import AUDIENCE, Installation
from holdfast.console import program as console_program
from holdfast.console.trackers import settings as trackers_settings
from holdfast.operator import program as operator_program
from holdfast.watchdog import program as watchdog_program
from holdfast.watchdog.access.auth import Grants
from holdfast.watchdog.settings import RedisAddress

POD_MAKERS = ("Deployment", "StatefulSet", "DaemonSet")
FULL: Values = {
    "commonLabels": {"team": "ml"},
    "imagePullSecrets": [{"name": "pull"}],
    "watchNamespaces": ["a", "b"],
    "priorityClass": {"create": True},
    "operator": {
        "maintenanceTaints": ["x/y"],
        "nodeConditions": [{"type": "Fan.*", "reason": "it's hot", "means": "evict", "part": "gpu"}],
        "placeLabels": ["example.com/rack=rack", "example.com/rail-0=rail"],
        "extraEnv": [{"name": "A", "value": "b"}],
        "nodeSelector": {"a": "b"},
    },
    "watchdog": {
        "podAnnotations": {"a": "b"},
        "tolerations": [{"operator": "Exists"}],
        "xidActions": {"63": "Evict", "31": "Restart"},
    },
    "agent": {"runtimeClassName": "nvidia", "extraArgs": ["--interval=2s"]},
    "redis": {"replicas": 5, "persistence": {"enabled": False}, "podAnnotations": {"a": "b"}},
    "viewer": {"namespaces": ["a", "b"]},
    "console": {"enabled": True, "ingress": {"enabled": True, "host": "console.example"}, "podLabels": {"a": "b"}},
    "trackers": {"enabled": True, "allowedHosts": ["api.wandb.ai"], "podLabels": {"a": "b"}},
}
ENCRYPTED: Values = {"watchdog": {"tls": {"existingSecret": "cert"}}}


def _pods(manifests: list[Manifest]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every pod's spec, with what makes it."""
    for each in manifests:
        name = f"{each['kind']}/{each['metadata']['name']}"
        if each["kind"] in POD_MAKERS:
            yield name, each["spec"]["template"]["spec"]
        elif each["kind"] == "Pod":
            yield name, each["spec"]


@pytest.mark.parametrize("values", [{}, FULL], ids=["defaults", "full"])
def test_the_chart_passes_its_linter(values: Values) -> None:
    report = lint(CHART, values, strict=True)
    assert report["errors"] == []
    assert [each for each in report["messages"] if "icon" not in each["error"]] == []


@pytest.mark.parametrize("values", [{}, FULL], ids=["defaults", "full"])
def test_every_pod_but_the_agents_is_restricted(values: Values) -> None:
    for name, pod in _pods(rendered(values)):
        if name == "DaemonSet/holdfast-agent":
            continue
        context = pod["securityContext"]
        assert (context["runAsNonRoot"], context["seccompProfile"]) == (True, {"type": "RuntimeDefault"}), name
        assert not {"hostPID", "hostNetwork", "hostIPC"} & set(pod), name
        assert not [volume for volume in pod.get("volumes", []) if "hostPath" in volume], name
        for container in pod["containers"]:
            inner = container["securityContext"]
            assert inner["capabilities"] == {"drop": ["ALL"]}, name
            assert (inner["allowPrivilegeEscalation"], inner["readOnlyRootFilesystem"]) == (False, True), name


def test_the_agent_asks_for_what_it_needs_and_no_more() -> None:
    pod = dict(_pods(rendered()))["DaemonSet/holdfast-agent"]
    container = pod["containers"][0]
    assert pod["hostPID"] is True
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostIPC"} & set(pod)
    assert "privileged" not in container["securityContext"]
    assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    on_the_node = [volume["name"] for volume in pod["volumes"] if "hostPath" in volume]
    assert on_the_node == ["kubelet-pods", "kubelet-pod-logs"]
    assert all(mounts[each]["readOnly"] is True for each in on_the_node)
    environment = {each["name"]: each.get("value") for each in container["env"]}
    assert environment["NVIDIA_DRIVER_CAPABILITIES"] == "utility", "the driver's word and no compute"
    probe = container["readinessProbe"]
    assert probe["httpGet"] == {"path": "/readyz", "port": "metrics"}
    assert probe["timeoutSeconds"] > ASK_S
    assert "--run-dir=/tmp/agent" in container["args"], (
        "what it raised is known again after a restart of the process"
    )


LOG_FILE = ("/var/log/kern.log", None, ("/var/log", "Directory"), "/kernel-log", "/kernel-log/kern.log")
LOG_DEVICE = ("/dev/kmsg", True, ("/dev/kmsg", "CharDevice"), "/dev/kmsg", "/dev/kmsg")


@pytest.mark.parametrize(("log", "privileged", "of_the_node", "mounted", "read"), [LOG_FILE, LOG_DEVICE])
def test_only_the_kernels_own_device_asks_for_privilege_and_a_log_file_is_found_after_its_rotation(
    log: str, privileged: bool | None, of_the_node: tuple[str, str], mounted: str, read: str
) -> None:
    pod = dict(_pods(rendered({"agent": {"kernelLog": log}})))["DaemonSet/holdfast-agent"]
    container = pod["containers"][0]
    assert container["securityContext"].get("privileged") is privileged
    assert ("allowPrivilegeEscalation" in container["securityContext"]) is (privileged is None)
    path, kind = of_the_node
    assert {"name": "kernel-log", "hostPath": {"path": path, "type": kind}} in pod["volumes"]
    assert {"name": "kernel-log", "mountPath": mounted, "readOnly": True} in container["volumeMounts"]
    assert f"--kernel-log={read}" in container["args"]


@pytest.mark.parametrize("values", [{}, FULL], ids=["defaults", "full"])
def test_two_replicas_are_drained_one_at_a_time(values: Values) -> None:
    budgets = {
        each["metadata"]["name"]: each for each in rendered(values) if each["kind"] == "PodDisruptionBudget"
    }
    assert {name: each["spec"]["maxUnavailable"] for name, each in budgets.items()} == {
        "holdfast-operator": 1,
        "holdfast-watchdog": 1,
        "holdfast-redis": 1,
    }
    alone = {"operator": {"replicas": 1}, "watchdog": {"disruptionBudget": {"enabled": False}}}
    alone["redis"] = {"replicas": 1}
    assert not [each for each in rendered(alone) if each["kind"] == "PodDisruptionBudget"]


@pytest.mark.parametrize("values", [{}, FULL], ids=["defaults", "full"])
def test_every_container_says_what_it_needs_and_which_image_it_is(values: Values) -> None:
    for name, pod in _pods(rendered(values)):
        for container in pod["containers"]:
            assert re.fullmatch(r"\S+:(?!latest)\S+", container["image"]), name
            if not name.startswith("Pod/"):
                assert {"requests", "limits"} <= set(container["resources"]), name


def test_every_selector_finds_its_pods() -> None:
    made = rendered(FULL)
    templates = [each["spec"]["template"] for each in made if each["kind"] in POD_MAKERS]
    templates += [each for each in made if each["kind"] == "Pod"]

    def found(selector: dict[str, str]) -> int:
        return sum(selector.items() <= template["metadata"]["labels"].items() for template in templates)

    for each in made:
        spec = each.get("spec", {})
        selector = spec.get("podSelector") or spec.get("selector") or {}
        selector = selector.get("matchLabels", selector)
        if each["kind"] in (*POD_MAKERS, "Service", "NetworkPolicy", "PodDisruptionBudget"):
            assert found(selector) == 1, each["metadata"]["name"]


def test_redis_hears_the_watchdog_and_its_own_only() -> None:
    def heard(values: Values) -> tuple[list[str], list[Any]]:
        spec = one(rendered(values), "NetworkPolicy", "holdfast-redis")["spec"]
        selectors = [each["podSelector"]["matchLabels"] for each in spec["ingress"][0]["from"]]
        return [each["app.kubernetes.io/component"] for each in selectors], spec["egress"]

    assert heard({"redis": {"replicas": 1}}) == (["watchdog"], [])
    who, egress = heard({})
    assert who == ["watchdog", "redis"]
    assert [port["port"] for rule in egress for port in rule["ports"]] == ["redis", "sentinel", 53, 53]


@pytest.mark.parametrize(
    ("replicas", "store"),
    [
        (1, "redis://holdfast-redis.team.svc:6379/0"),
        (
            3,
            "redis+sentinel://holdfast-redis-0.holdfast-redis.team.svc:26379,holdfast-redis-1.holdfast-redis.team"
            ".svc:26379,holdfast-redis-2.holdfast-redis.team.svc:26379/holdfast/0",
        ),
    ],
)
def test_the_watchdog_is_told_of_every_redis_there_is(replicas: int, store: str) -> None:
    made = rendered({"redis": {"replicas": replicas}})
    arguments = dict(_pods(made))["Deployment/holdfast-watchdog"]["containers"][0]["args"]
    (given,) = [each.removeprefix("--store=") for each in arguments if each.startswith("--store=")]
    namespace = one(made, "StatefulSet", "holdfast-redis")["metadata"]["namespace"]
    assert given == store.replace("team", namespace)
    assert RedisAddress.parse(given).primary == (None if replicas == 1 else "holdfast")
    assert one(made, "StatefulSet", "holdfast-redis")["spec"]["replicas"] == replicas
    budgets = [each["metadata"]["name"] for each in made if each["kind"] == "PodDisruptionBudget"]
    assert ("holdfast-redis" in budgets) == (replicas > 1)


@pytest.mark.parametrize("part", ["operator", "watchdog", "redis"])
def test_each_of_a_kind_has_a_node_of_its_own_unless_two_may_share_one(part: str) -> None:
    def kept_apart(values: Values) -> dict[str, Any]:
        kind = "StatefulSet" if part == "redis" else "Deployment"
        pod: dict[str, Any] = dict(_pods(rendered(values)))[f"{kind}/holdfast-{part}"]
        return pod["affinity"]["podAntiAffinity"]

    (apart,) = kept_apart({}).pop("requiredDuringSchedulingIgnoredDuringExecution")
    assert apart["topologyKey"] == "kubernetes.io/hostname"
    assert apart["labelSelector"]["matchLabels"]["app.kubernetes.io/component"] == part
    assert set(kept_apart({part: {"spread": "preferred"}})) == {"preferredDuringSchedulingIgnoredDuringExecution"}


@pytest.mark.parametrize("part", ["operator", "watchdog"])
def test_a_new_pod_does_not_wait_for_the_node_of_the_one_that_it_replaces(part: str) -> None:
    spec = one(rendered({}), "Deployment", f"holdfast-{part}")["spec"]
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}


@pytest.mark.parametrize(
    "pod", ["Deployment/holdfast-operator", "Deployment/holdfast-watchdog", "DaemonSet/holdfast-agent"]
)
def test_a_name_server_that_is_gone_is_asked_for_a_second(pod: str) -> None:
    assert {"name": "timeout", "value": "1"} in dict(_pods(rendered({})))[pod]["dnsConfig"]["options"]


def test_the_watchdogs_share_a_name_and_listen_where_it_leads() -> None:
    made = rendered({"watchdog": {"service": {"port": 7100}}})
    service = one(made, "Service", "holdfast-watchdog")["spec"]
    assert (service["clusterIP"], service["ports"][0]["port"]) == ("None", 7100)
    container = dict(_pods(made))["Deployment/holdfast-watchdog"]["containers"][0]
    assert container["ports"][0]["containerPort"] == 7100
    assert "--listen=0.0.0.0:7100" in container["args"]


def test_two_redis_are_refused() -> None:
    with pytest.raises(HelmError, match=r"replicas"):
        rendered({"redis": {"replicas": 2}})


@pytest.mark.parametrize("name", ["Deployment/holdfast-watchdog", "Deployment/holdfast-operator"])
def test_what_ran_on_a_node_that_is_gone_is_started_elsewhere_soon(name: str) -> None:
    tolerations = dict(_pods(rendered()))[name]["tolerations"]
    assert {each["key"]: each["tolerationSeconds"] for each in tolerations} == {
        "node.kubernetes.io/not-ready": 15,
        "node.kubernetes.io/unreachable": 15,
    }


def _parsed(command: click.Command, arguments: list[str]) -> None:
    command.make_context("program", list(arguments))


PARSERS: dict[str, Callable[[list[str]], None]] = {
    "Deployment/holdfast-operator": lambda arguments: _parsed(operator_program.command, arguments),
    "Deployment/holdfast-watchdog": lambda arguments: _parsed(watchdog_program.command, arguments),
}


@pytest.mark.parametrize("values", [{}, FULL, ENCRYPTED], ids=["defaults", "full", "encrypted"])
@pytest.mark.parametrize("name", PARSERS)
def test_a_program_takes_the_arguments_it_is_given(name: str, values: Values) -> None:
    pod = dict(_pods(rendered(values)))[name]
    PARSERS[name](pod["containers"][0]["args"])


def test_the_clusters_word_about_an_error_reaches_the_watchdog() -> None:
    arguments = dict(_pods(rendered(FULL)))["Deployment/holdfast-watchdog"]["containers"][0]["args"]
    assert {"--xid=63=Evict", "--xid=31=Restart"} <= set(arguments)


def test_the_agent_takes_the_arguments_it_is_given(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("t" * 20)
    arguments = dict(_pods(rendered(FULL)))["DaemonSet/holdfast-agent"]["containers"][0]["args"]
    here = [re.sub(r"(token-file)=.*", rf"\1={token}", each) for each in arguments]
    here = [each.replace("/kubelet-pods", str(tmp_path)).replace("$(NODE_NAME)", "node-a") for each in here]
    assert parse_settings(here).node == "node-a"


def test_only_the_watchdog_gets_its_key_and_everybody_its_authority() -> None:
    held = {
        name: [each["secret"] for each in pod["volumes"] if each.get("secret", {}).get("secretName") == "cert"]
        for name, pod in _pods(rendered(ENCRYPTED))
        if "redis" not in name
    }
    authority = {"secretName": "cert", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    assert held == {
        "Deployment/holdfast-watchdog": [{"secretName": "cert"}],
        "Deployment/holdfast-operator": [authority],
        "DaemonSet/holdfast-agent": [authority],
        "Pod/holdfast-test": [authority],
    }
    pods = dict(_pods(rendered(ENCRYPTED)))
    watchdog = pods["Deployment/holdfast-watchdog"]["containers"][0]
    assert watchdog["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    assert "--peer=https://holdfast-watchdog.hf.svc:7077" in watchdog["args"]
    for name in ("Deployment/holdfast-operator", "DaemonSet/holdfast-agent"):
        assert "--watchdog-ca-file=/etc/holdfast/ca/ca.crt" in pods[name]["containers"][0]["args"]


def test_every_account_that_asks_the_watchdog_is_granted_its_roles() -> None:
    text = one(rendered(), "ConfigMap", "holdfast-watchdog-grants")["data"]["grants.yaml"]
    grants = msgspec.yaml.decode(text, type=Grants)
    assert {user.rpartition("-")[2]: {str(role) for role in roles} for user, roles in grants.users.items()} == {
        "operator": {"view", "operate"},
        "agent": {"ingest"},
        "viewer": {"view"},
    }


def test_a_console_may_view_and_is_asked_for_by_whoever_may_read() -> None:
    values: Values = {"console": {"enabled": True, "ingress": {"enabled": True, "host": "c.example"}}}
    made = rendered(values)
    text = one(made, "ConfigMap", "holdfast-watchdog-grants")["data"]["grants.yaml"]
    grants = msgspec.yaml.decode(text, type=Grants)
    assert {str(role) for role in grants.users["system:serviceaccount:hf:holdfast-console"]} == {"view"}
    (container,) = one(made, "Deployment", "holdfast-console")["spec"]["template"]["spec"]["containers"]
    words = console_program.command.make_context("console", [*container["args"]], resilient_parsing=False).params
    settings = console_program.settings_from(**{name: words[name] for name in words if name != "log_level"})
    assert str(settings.watchdog.address) == "holdfast-watchdog.hf.svc:7077"
    rules = one(made, "Role", "holdfast-reader")["rules"]
    assert Installation.of("hf", "holdfast-watchdog:http").console in rules[0]["resourceNames"]
    policy = one(made, "NetworkPolicy", "holdfast-console")["spec"]
    reached = policy["egress"][0]["to"][0]["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
    assert reached == "watchdog"
    ingress = one(made, "Ingress", "holdfast-console")["spec"]["rules"][0]
    service = one(made, "Service", "holdfast-console")["metadata"]["name"]
    assert ingress["http"]["paths"][0]["backend"]["service"]["name"] == service
    with pytest.raises(HelmError, match="name the host"):
        rendered({"console": {"enabled": True, "ingress": {"enabled": True}}})


@pytest.mark.parametrize("release", ["holdfast", "prod"])
@pytest.mark.parametrize("scheme", ["", "https:"])
def test_readers_may_ask_for_what_the_command_line_asks_for(release: str, scheme: str) -> None:
    elsewhere: Values = {
        "viewer": {"serviceAccount": {"create": False}}
    }  # somebody else makes it, of the same name
    for made in (rendered(release=release), rendered(elsewhere, release=release)):
        (reader,) = [
            each for each in made if each["kind"] == "Role" and each["metadata"]["name"].endswith("reader")
        ]
        (watchdog,) = [
            each["metadata"]["name"]
            for each in made
            if each["kind"] == "Service" and each["metadata"]["name"].endswith("-watchdog")
        ]
        asked = Installation.of("hf", f"{scheme}{watchdog}:http")
        named = {rule["resources"][0]: rule["resourceNames"] for rule in reader["rules"]}
        assert asked.service in named["services/proxy"]
        assert named["serviceaccounts/token"] == [asked.viewer]


def test_tokens_are_made_for_the_audience_that_the_watchdog_and_the_command_line_know() -> None:
    made = [
        source["serviceAccountToken"]["audience"]
        for _, pod in _pods(rendered())
        for volume in pod.get("volumes", [])
        for source in volume.get("projected", {}).get("sources", [])
        if "serviceAccountToken" in source
    ]
    assert set(made) == {AUDIENCE}
    programs = (operator_program.command, watchdog_program.command)
    assert [param.default for each in programs for param in each.params if param.name == "audience"] == [
        AUDIENCE
    ] * 2


def test_rights_in_chosen_namespaces_are_roles_there() -> None:
    everywhere, chosen = rendered(), rendered({"watchNamespaces": ["a", "b"]})
    cluster = one(chosen, "ClusterRole", "hf-holdfast-operator")["rules"]
    assert [rule["resources"] for rule in cluster] == [["nodes"], ["deviceclasses"], ["nodes/status"]]
    roles = [
        each for each in chosen if each["kind"] == "Role" and each["metadata"]["name"] == "hf-holdfast-operator"
    ]
    assert [each["metadata"]["namespace"] for each in roles] == ["a", "b"]
    assert roles[0]["rules"] == one(everywhere, "ClusterRole", "hf-holdfast-operator")["rules"][3:]


def test_who_views_or_is_on_call_may_read_jobs_and_what_they_print() -> None:
    made = rendered()
    for name in ("view", "oncall"):
        rules = one(made, "ClusterRole", f"hf-holdfast-{name}")["rules"]
        may = {(verb, each) for rule in rules for verb in rule["verbs"] for each in rule["resources"]}
        assert may >= {*((verb, "trainingjobs") for verb in ("get", "list", "watch")), ("get", "trainingjobs/log")}
    labels = one(made, "ClusterRole", "hf-holdfast-view")["metadata"]["labels"]
    assert labels["rbac.authorization.k8s.io/aggregate-to-view"] == "true"


def test_the_watchdog_may_ask_whose_a_token_is_and_what_its_holder_may_read() -> None:
    rules = one(rendered(), "ClusterRole", "hf-holdfast-watchdog")["rules"]
    assert {(*rule["apiGroups"], *rule["resources"], *rule["verbs"]) for rule in rules} == {
        ("authentication.k8s.io", "tokenreviews", "create"),
        ("authorization.k8s.io", "subjectaccessreviews", "create"),
    }


def test_chosen_namespaces_get_an_account_that_views_them_and_cannot_make_tokens() -> None:
    names = ("hf-holdfast-live", "holdfast-way", "holdfast-namespace-viewer")
    assert not [each for each in rendered() if each["metadata"]["name"] in names], "only where it was asked for"
    made = rendered({"viewer": {"namespaces": ["a", "b"]}})
    account = Installation.of("hf", "holdfast-watchdog:http").namespace_viewer
    live = one(made, "ClusterRole", "hf-holdfast-live")
    assert live["rules"] == [
        {
            "apiGroups": [""],
            "resources": ["serviceaccounts/token"],
            "resourceNames": [account],
            "verbs": ["create"],
        }
    ]
    assert live["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    for kind in ("ServiceAccount", "RoleBinding"):
        there = [each for each in made if (each["kind"], each["metadata"]["name"]) == (kind, account)]
        assert [each["metadata"]["namespace"] for each in there] == ["a", "b"]
    assert {each["roleRef"]["name"] for each in there} == {"hf-holdfast-view"}
    assert [each["subjects"][0]["namespace"] for each in there] == ["a", "b"]
    resources = {
        each for rule in one(made, "ClusterRole", "hf-holdfast-view")["rules"] for each in rule["resources"]
    }
    assert "serviceaccounts/token" not in resources


def test_no_right_is_a_wildcard() -> None:
    for each in rendered(FULL):
        for rule in each.get("rules") or []:
            assert "*" not in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]], each["metadata"]["name"]


def test_an_operator_that_only_heeds_taints_may_not_write_to_nodes() -> None:
    consuming = {"operator": {"cordoning": "consume", "handOn": "nothing"}}
    rules = one(rendered(consuming), "ClusterRole", "hf-holdfast-operator")["rules"]
    assert rules[0] == {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]}
    assert [each for each in rules if "nodes/status" in each["resources"]] == []


HANDED_ON = {"nothing": set(), "condition": {"nodes/status"}, "remediation": {"nodes/status", "noderemediations"}}


@pytest.mark.parametrize(("how", "resources"), HANDED_ON.items(), ids=HANDED_ON)
def test_an_operator_has_the_rights_for_what_it_hands_on_and_no_more(how: str, resources: set[str]) -> None:
    made = rendered({"operator": {"handOn": how}})
    rules = one(made, "ClusterRole", "hf-holdfast-operator")["rules"]
    given = {each: rule["verbs"] for rule in rules for each in rule["resources"]}
    assert given.keys() & {"nodes/status", "noderemediations", "noderemediations/status"} == resources
    assert given.get("nodes/status", ["patch"]) == ["patch"]
    roles = {name for name in named(made) if name.startswith("ClusterRole/") and name.endswith("-remediator")}
    assert len(roles) == (how == "remediation")
    others = [
        each
        for each in made
        if each["kind"] == "ClusterRole" and not each["metadata"]["name"].endswith("-operator")
    ]
    writes = [
        each["metadata"]["name"]
        for each in others
        for rule in each["rules"]
        if "noderemediations/status" in rule["resources"]
    ]
    assert [name.endswith("-remediator") for name in writes] == [True] * (how == "remediation"), (
        "a tenant's role may not"
    )


def test_an_operator_asks_for_capacity_only_where_it_may() -> None:
    for values, counted in (({}, 0), ({"operator": {"capacity": "provisioning-request"}}, 2)):
        rules = one(rendered(values), "ClusterRole", "hf-holdfast-operator")["rules"]
        resources = [each for rule in rules for each in rule["resources"]]
        assert len({"podtemplates", "provisioningrequests"} & {*resources}) == counted


@pytest.mark.parametrize("mode", ["act", "observe"])
def test_an_operator_writes_workloads_of_kueue_only_where_it_is_used_and_acts(mode: str) -> None:
    for enabled in (False, True):
        made = rendered({"kueue": {"enabled": enabled}, "operator": {"mode": mode}})
        rules = one(made, "ClusterRole", "hf-holdfast-operator")["rules"]
        may = {resource: set(rule["verbs"]) for rule in rules for resource in rule["resources"]}
        assert ("resourceflavors" in may, "priorityclasses" in may) == (enabled, enabled)
        assert ("create" in may.get("workloads", ())) == (enabled and mode == "act")
        assert may.get("workloads/status", set()) == ({"patch"} if enabled and mode == "act" else set())
        container = dict(_pods(made))["Deployment/holdfast-operator"]["containers"][0]
        assert ("--kueue" in container["args"]) == enabled


def test_rules_for_conditions_reach_the_operator_as_they_were_written() -> None:
    rules = FULL["operator"]["nodeConditions"]
    container = dict(_pods(rendered(FULL)))["Deployment/holdfast-operator"]["containers"][0]
    (given,) = [each for each in container["args"] if each.startswith("--node-conditions=")]
    assert json.loads(given.partition("=")[2]) == rules


def test_labels_of_places_reach_the_operator() -> None:
    container = dict(_pods(rendered(FULL)))["Deployment/holdfast-operator"]["containers"][0]
    assert "--place-labels=example.com/rack=rack,example.com/rail-0=rail" in container["args"]


@pytest.mark.parametrize("namespaces", [[], ["a", "b"]], ids=["everywhere", "chosen"])
def test_an_operator_that_observes_may_write_nothing_but_its_lease_and_what_it_says(namespaces: list[str]) -> None:
    made = rendered({"operator": {"mode": "observe"}, "watchNamespaces": namespaces})
    roles = [
        each
        for each in made
        if each["kind"] in ("Role", "ClusterRole")
        and each["metadata"]["labels"].get("app.kubernetes.io/component") == "operator"
    ]
    assert len(roles) == 2 + len(namespaces)
    rules = [rule for role in roles for rule in role["rules"]]
    written = {
        (resource, verb)
        for rule in rules
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if verb not in ("get", "list", "watch")
    }
    assert written == {("trainingjobs/status", "patch"), ("leases", "create"), ("leases", "update")}


def test_a_redis_of_ones_own_takes_the_place_of_the_bundled_one() -> None:
    external = {"url": "rediss://redis.example:6380/2", "existingSecret": "redis", "existingSecretKey": "pass"}
    made = rendered({"redis": {"bundled": False, "external": external}})
    assert not [name for name in named(made) if "redis" in name]
    pod = dict(_pods(made))["Deployment/holdfast-watchdog"]
    assert "--store=rediss://redis.example:6380/2" in pod["containers"][0]["args"]
    secret = next(volume["secret"] for volume in pod["volumes"] if volume["name"] == "redis")
    assert secret == {"secretName": "redis", "items": [{"key": "pass", "path": "password"}]}


def test_a_missing_redis_is_told_of_with_the_way_out() -> None:
    with pytest.raises(HelmError, match=r"redis\.external\.url: give the address of your Redis"):
        rendered({"redis": {"bundled": False}})


@pytest.mark.parametrize(
    ("values", "image"),
    [
        ({}, "holdfast/operator:0.1.0"),
        ({"operator": {"image": {"tag": "1.2"}}}, "holdfast/operator:1.2"),
        ({"imageRegistry": "registry.example/x"}, "registry.example/x/holdfast/operator:0.1.0"),
        ({"operator": {"image": {"digest": "sha256:" + "a" * 64}}}, f"holdfast/operator@sha256:{'a' * 64}"),
    ],
)
def test_an_image_is_named_by_registry_tag_or_digest(values: Values, image: str) -> None:
    assert dict(_pods(rendered(values)))["Deployment/holdfast-operator"]["containers"][0]["image"] == image


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"operatr": {}}, "operatr"),
        ({"operator": {"mod": "act"}}, "mod"),
        ({"operator": {"mode": "perhaps"}}, "operator/mode"),
        ({"operator": {"handOn": "everything"}}, "operator/handOn"),
        ({"operator": {"nodeConditions": [{"type": "Fan"}]}}, "means"),
        ({"operator": {"placeLabels": ["example.com/rack"]}}, "placeLabels"),
        ({"operator": {"nodeConditions": [{"type": "Fan", "means": "reboot"}]}}, "nodeConditions/0/means"),
        ({"watchdog": {"replicas": 0}}, "watchdog/replicas"),
        ({"watchdog": {"grants": {"users": {"jane": ["rule"]}}}}, "grants/users/jane"),
        ({"watchdog": {"xidActions": {"63": "Reboot"}}}, "xidActions/63"),
        ({"watchdog": {"xidActions": {"1024": "Evict"}}}, "1024"),
        ({"agent": {"image": {"digest": "abc"}}}, "agent/image/digest"),
        ({"watchNamespaces": "a"}, "watchNamespaces"),
    ],
)
def test_a_wrong_value_is_refused_by_name(values: Values, said: str) -> None:
    with Chart.load(CHART) as chart, pytest.raises(HelmError) as caught:
        chart.validate_schema(values)
    assert said in str(caught.value)


def test_every_value_is_documented_and_the_documents_are_in_step() -> None:
    document = runpy.run_path(str(CHART.parent / "document.py"))
    for path, text in document["written"]().items():
        assert path.read_text() == text, "run python helm/document.py"


def test_names_stay_within_what_kubernetes_takes() -> None:
    for each in rendered(release="a-release-with-a-name-of-fifty-characters-abcdefgh"):
        assert len(each["metadata"]["name"]) <= 63, each["metadata"]["name"]


def test_parts_can_be_left_out() -> None:
    off = {"agent": {"enabled": False}, "networkPolicy": {"enabled": False}, "rbac": {"create": False}}
    kinds = {each["kind"] for each in rendered({**off, "crds": {"install": False}})}
    assert not kinds & {"DaemonSet", "NetworkPolicy", "ClusterRole", "Role", "CustomResourceDefinition"}


def test_definitions_are_kept_unless_told_otherwise() -> None:
    name = "trainingjobs.holdfast.dev"
    kept, given_up = rendered(), rendered({"crds": {"keep": False}})
    annotations = one(kept, "CustomResourceDefinition", name)["metadata"]["annotations"]
    assert annotations == {"helm.sh/resource-policy": "keep"}
    assert "annotations" not in one(given_up, "CustomResourceDefinition", name)["metadata"]


def test_a_recent_server_is_given_the_rules_across_fields() -> None:
    definition = one(rendered(), "CustomResourceDefinition", "interventions.holdfast.dev")
    spec = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert len(spec["x-kubernetes-validations"]) == 8


def test_the_notes_warn_of_what_would_surprise() -> None:
    assert "WARNING" not in notes()
    assert "history is gone" in notes({"redis": {"persistence": {"enabled": False}}})
    assert "changes nothing" in notes({"operator": {"mode": "observe"}})
    assert "does not know PodMonitor. None was made." in notes({"metrics": {"podMonitor": {"enabled": True}}})
    assert "No alert was set up." in notes({"metrics": {"prometheusRule": {"enabled": True}}})


def test_trackers_may_view_call_what_is_named_and_read_the_secrets_that_are() -> None:
    values: Values = {"trackers": {"enabled": True, "allowedHosts": ["api.wandb.ai", "mlflow.example:8443"]}}
    made = rendered(values)
    grants = one(made, "ConfigMap", "holdfast-watchdog-grants")["data"]["grants.yaml"]
    assert "system:serviceaccount:hf:holdfast-trackers:\n  - view" in grants
    deployment = one(made, "Deployment", "holdfast-trackers")["spec"]
    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})
    (container,) = deployment["template"]["spec"]["containers"]
    settings = trackers_settings.parse_settings(container["args"])
    assert settings.allowed_hosts == ("api.wandb.ai", "mlflow.example:8443")
    assert settings.secrets_server == "https://$(KUBERNETES_SERVICE_HOST):$(KUBERNETES_SERVICE_PORT)"
    (rule,) = one(made, "ClusterRole", "hf-holdfast-trackers")["rules"]
    assert (rule["resources"], rule["resourceNames"], rule["verbs"]) == (
        ["secrets"],
        ["holdfast-reporting"],
        ["get"],
    )
    assert one(made, "PersistentVolumeClaim", "holdfast-trackers")["spec"]["accessModes"] == ["ReadWriteOnce"]


def test_by_default_nothing_is_published_and_nothing_may_be_called() -> None:
    assert not [each for each in rendered() if each["metadata"]["name"].endswith("trackers")]
    (container,) = one(rendered({"trackers": {"enabled": True}}), "Deployment", "holdfast-trackers")["spec"][
        "template"
    ]["spec"]["containers"]
    assert trackers_settings.parse_settings(container["args"]).allowed_hosts == ()
