import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fakekubernetes import PROXY, FakeKubernetes, a_job, fake_kubernetes, refusal, some_jobs
from fakewatchdog import fake_watchdog
from wireobjects import a_status

from holdfast.api import kubernetes_versions
from holdfast.api.standing import Standing
from holdfast.cli.cluster.kubeapi import CREATE_INTERVENTION, LIST_JOBS
from holdfast.cli.cluster.record import JobRecord, read_record
from holdfast.cli.commands.doctor import Machine, examine_machine
from holdfast.cli.doctor.checks import difference, examine
from holdfast.cli.doctor.facts import (
    Facts,
    Finding,
    Health,
    InterventionSeen,
    LeaseSeen,
    Level,
    NodeSeen,
    PodSeen,
    Unseen,
    Workload,
    findings_text,
)
from holdfast.cli.main import answer
from holdfast.cli.target import Program


def a_definition(**fields: str) -> dict[str, Any]:
    spec = {"type": "object", "properties": {name: {"type": kind} for name, kind in fields.items()}}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "metadata": {"type": "object"}}}}
    return {"spec": {"versions": [{"name": "v1alpha1", "schema": schema}]}}


def a_job_with(**conditions: str) -> JobRecord:
    """Its conditions, by type: STATUS or STATUS:REASON; one that nobody wrote is left out."""
    written = [
        {"type": type, "status": status, "reason": reason or "Why", "message": "because"}
        for type, said in conditions.items()
        for status, _, reason in (said.partition(":"),)
    ]
    return read_record(a_job(conditions=written))


SOUND = {"InvalidSpec": "False", "WatchdogReachable": "True"}

WELL = Facts(
    server="https://api",
    namespace="holdfast",
    version=f"v{kubernetes_versions.OLDEST_TRIED}",
    definitions={"trainingjobs": a_definition(entrypoint="array")},
    expected={"trainingjobs": a_definition(entrypoint="array")},
    rights={LIST_JOBS: True},
    operator=Workload(2, 2),
    operator_pods=(PodSeen("o-1", "n1"), PodSeen("o-2", "n2")),
    lease=LeaseSeen("operator-a", 3.0, 15.0),
    watchdog=Workload(2, 2),
    watchdog_pods=(PodSeen("w-1", "n1"), PodSeen("w-2", "n2")),
    redis=Workload(3, 3),
    redis_pods=(PodSeen("r-0", "n1"), PodSeen("r-1", "n2"), PodSeen("r-2", "n3")),
    health=Health(None),
    jobs_read=3,
    agents=Workload(2, 2),
    agent_pods=(PodSeen("a-1", "n1"), PodSeen("a-2", "n2")),
    nodes=(NodeSeen("n1"), NodeSeen("n2")),
    jobs=(a_job_with(**SOUND),),
    groups=frozenset({"monitoring.coreos.com"}),
)


def found(what: str, facts: Facts) -> Finding:
    """The worst finding about it."""
    about = [each for each in examine(facts) if each.what == what]
    assert about, [each.what for each in examine(facts)]
    return next((each for each in about if each.level is not Level.OK), about[0])


def test_a_whole_installation_is_well() -> None:
    findings = examine(WELL)
    assert {each.level for each in findings} == {Level.OK}, findings_text(findings)
    assert all(not each.fix for each in findings)


@pytest.mark.parametrize(
    ("what", "change", "level", "says"),
    [
        ("API server", {"version": "v1.0.9"}, Level.WARN, "v1.0.9 at https://api"),
        ("API server", {"version": "v1.999.0"}, Level.OK, f"newer than {kubernetes_versions.NEWEST}"),
        ("API server", {"version": "next"}, Level.WARN, "a version nobody knows"),
        ("definition trainingjobs", {"definitions": {"trainingjobs": None}}, Level.FAIL, "it is not installed"),
        (
            "definition trainingjobs",
            {"definitions": {"trainingjobs": a_definition(entrypoint="string", nodes="object")}},
            Level.WARN,
            "spec.nodes is unknown to this version, spec.entrypoint is of another type",
        ),
        ("definition trainingjobs", {"expected": {}}, Level.WARN, "is not known"),
        ("definitions", {"definitions": Unseen("forbidden")}, Level.WARN, "not known: forbidden"),
        ("operator", {"operator": None}, Level.FAIL, "there is none in namespace holdfast"),
        ("operator", {"operator": Workload(2, 0)}, Level.FAIL, "0 of 2 ready"),
        ("operator", {"operator": Unseen("forbidden")}, Level.WARN, "not known: forbidden"),
        (
            "operator",
            {"operator_pods": (PodSeen("o-1", "", trouble="ImagePullBackOff no such image"),)},
            Level.WARN,
            "o-1: ImagePullBackOff no such image",
        ),
        ("operator", {"operator": Workload(2, 1)}, Level.WARN, "1 of 2 ready"),
        ("watchdog", {"watchdog": Workload(2, 1)}, Level.WARN, "1 of 2 ready"),
        ("redis", {"redis": Workload(3, 2)}, Level.WARN, "2 of 3 ready"),
        ("redis", {"redis": Workload(3, 0)}, Level.FAIL, "0 of 3 ready"),
        ("redis", {"redis": Unseen("forbidden")}, Level.WARN, "not known: forbidden"),
        (
            "nodes of operator",
            {"operator_pods": (PodSeen("o-1", "n1"), PodSeen("o-2", "n1"))},
            Level.WARN,
            "o-1, o-2 are on one node, n1",
        ),
        (
            "nodes of watchdog",
            {"watchdog_pods": (PodSeen("w-1", "n1"), PodSeen("w-2", "n1"))},
            Level.WARN,
            "w-1, w-2 are on one node, n1",
        ),
        (
            "nodes of redis",
            {"redis_pods": (PodSeen("r-0", "n1"), PodSeen("r-1", "n2"), PodSeen("r-2", "n2"))},
            Level.WARN,
            "r-1, r-2 are on one node, n2, whose loss takes all of them",
        ),
        ("nodes of redis", {"redis_pods": Unseen("forbidden")}, Level.WARN, "not known: forbidden"),
        (
            "spread",
            {"operator_pods": (PodSeen("o-1", "n1"), PodSeen("o-0", "n1", trouble="Failed Evicted"))},
            Level.OK,
            "share a node",
        ),
        ("operator lease", {"lease": None}, Level.FAIL, "nobody holds it"),
        ("operator lease", {"lease": LeaseSeen("", 1.0, 15.0)}, Level.FAIL, "nobody holds it"),
        ("operator lease", {"lease": LeaseSeen("a", 60.0, 15.0)}, Level.FAIL, "a renewed it 60 s ago"),
        ("watchdog", {"watchdog": Workload(2, 0)}, Level.FAIL, "0 of 2 ready"),
        (
            "watchdog leader",
            {"health": Health(None, standing=Standing.STANDBY)},
            Level.FAIL,
            "nobody leads: only standbys answer",
        ),
        ("watchdog leader", {"health": Unseen("away")}, Level.WARN, "away"),
        ("watchdog standby", {"watchdog": Workload(2, 1)}, Level.WARN, "there is none that is ready"),
        ("store", {"health": Health("Redis refuses writes")}, Level.FAIL, "Redis refuses writes"),
        ("store", {"health": Health(None)}, Level.OK, "can record"),
        ("store", {"health": Unseen("away")}, Level.WARN, "away"),
        (
            "rights",
            {"rights": {CREATE_INTERVENTION: False}},
            Level.WARN,
            "you lack the right to create",
        ),
        ("reading", {"jobs_read": Unseen("no endpoints")}, Level.FAIL, "no endpoints"),
        ("agent", {"agents": Workload(3, 2)}, Level.FAIL, "ready on 2 of 3 nodes"),
        ("agent", {"agents": Workload(0, 0)}, Level.WARN, "it is meant for no node"),
        ("agent", {"agents": None}, Level.FAIL, "there is none"),
        (
            "nodes without an agent",
            {"nodes": tuple(NodeSeen(f"n{place}") for place in range(1, 10))},
            Level.WARN,
            "n3, n4, n5, n6, n7 and 2 more",
        ),
        (
            "node n2",
            {"nodes": (NodeSeen("n2", "XID 79 (job a/b, inc-1)"),)},
            Level.WARN,
            "taken out of service: XID 79 (job a/b, inc-1)",
        ),
        ("nodes", {"nodes": Unseen("forbidden")}, Level.WARN, "forbidden"),
        (
            "job research/gpt",
            {"jobs": (a_job_with(**SOUND | {"InvalidSpec": "True"}),)},
            Level.FAIL,
            "InvalidSpec is True: Why: because",
        ),
        (
            "job research/gpt",
            {"jobs": (a_job_with(**SOUND | {"WatchdogReachable": "False"}),)},
            Level.FAIL,
            "WatchdogReachable is False",
        ),
        (
            "job research/gpt",
            {"jobs": (a_job_with(**SOUND | {"WatchdogReachable": "Unknown"}),)},
            Level.WARN,
            "WatchdogReachable is not known: Why: because",
        ),
        ("job research/gpt", {"jobs": (a_job_with(),)}, Level.WARN, "InvalidSpec is not known"),
        (
            "job research/gpt",
            {"jobs": (a_job_with(**SOUND, PodsAltered="True:Dropped"),)},
            Level.WARN,
            "PodsAltered is True: Dropped: because",
        ),
        ("jobs", {"jobs": (a_job_with(**SOUND, PodsAltered="True:Rewritten"),)}, Level.OK, "all of 1"),
        ("jobs", {"jobs": ()}, Level.OK, "all of 0"),
        (
            "intervention a/evict-x",
            {"pending": (InterventionSeen("a/evict-x", "Evict", 90.0),)},
            Level.FAIL,
            "90 s",
        ),
        ("interventions", {"pending": (InterventionSeen("a/evict-x", "Evict", 9.0),)}, Level.OK, "none waits"),
        (
            "interventions",
            {"pending": tuple(InterventionSeen(f"a/e{place}", "Evict", 99.0) for place in range(7))},
            Level.FAIL,
            "2 more wait",
        ),
        ("Prometheus operator", {"groups": frozenset()}, Level.OK, "it is optional"),
    ],
)
def test_what_is_wrong_is_said_with_what_to_do(what: str, change: dict[str, Any], level: Level, says: str) -> None:
    finding = found(what, replace(WELL, **change))
    assert finding.level is level
    assert says in finding.says
    if level is Level.FAIL and what != "interventions":
        assert finding.fix


@pytest.mark.parametrize("part", ["operator", "watchdog", "redis"])
def test_two_of_a_kind_on_one_node_are_kept_apart_by_a_value_and_a_command(part: str) -> None:
    together: Any = {f"{part}_pods": (PodSeen("r-0", "n1"), PodSeen("r-1", "n1"))}
    fix = found(f"nodes of {part}", replace(WELL, **together)).fix
    assert f"{part}.spread to required" in fix
    assert fix.endswith("kubectl -n holdfast delete pod r-1")


def test_of_a_redis_elsewhere_nothing_is_said_but_whether_the_watchdog_reaches_it() -> None:
    findings = examine(replace(WELL, redis=None, redis_pods=()))
    assert {each.level for each in findings} == {Level.OK}
    assert "redis" not in {each.what for each in findings}


def test_an_api_server_that_does_not_answer_is_the_only_finding() -> None:
    findings = examine(replace(WELL, version=Unseen("connection refused")))
    assert [(each.level, each.says) for each in findings] == [(Level.FAIL, "connection refused")]


def test_a_definition_is_compared_by_its_versions_and_fields() -> None:
    mine = a_definition(a="string")
    assert difference(mine, mine) == ""
    assert difference({"spec": {"versions": []}}, mine) == "version v1alpha1 is missing"
    many = a_definition(**{f"f{place}": "string" for place in range(9)})
    assert difference(mine, many).endswith(" and 6 more")


def test_the_generated_definitions_are_equal_to_themselves() -> None:
    from holdfast.cli.doctor.gathering import expected_definitions

    definitions = expected_definitions()
    assert set(definitions) == {"trainingjobs", "interventions", "noderemediations"}
    for definition in definitions.values():
        assert difference(definition, definition) == ""
    altered = copy.deepcopy(definitions["trainingjobs"])
    schema = altered["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["spec"]["properties"]["nodes"]["properties"]["spares"]
    assert difference(altered, definitions["trainingjobs"]) == "spec.nodes.spares is missing"


def test_each_finding_is_a_line_and_what_to_do_below_it() -> None:
    text = findings_text([Finding(Level.OK, "a", "well"), Finding(Level.FAIL, "bcd", "ill", "cure it")])
    assert text == "ok    a    well\nFAIL  bcd  ill\n           -> cure it"


@pytest.fixture
def kubernetes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKubernetes]:
    with fake_kubernetes(tmp_path) as fake:
        monkeypatch.setenv("KUBECONFIG", str(fake.kubeconfig))
        yield fake


def installed(kubernetes: FakeKubernetes) -> None:
    """What an API server says of a small installation, part of which is out of sight."""
    apps = "/apis/apps/v1/namespaces/holdfast"
    selector = {"selector": {"matchLabels": {"component": "watchdog"}}, "replicas": 2}
    watchdog = {"metadata": {"name": "hf-watchdog"}, "spec": selector, "status": {"readyReplicas": 1}}
    agents = {"metadata": {"name": "hf-agent"}, "spec": selector, "status": {"desiredNumberScheduled": 1}}
    redis = {
        "metadata": {"name": "hf-redis"},
        "spec": {**selector, "replicas": 3},
        "status": {"readyReplicas": 2},
    }
    waiting = {"state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}, "restartCount": 4}
    pods = [
        {"metadata": {"name": "a"}, "spec": {"nodeName": "n1"}, "status": {"phase": "Running"}},
        {"metadata": {"name": "b"}, "spec": {}, "status": {"containerStatuses": [waiting]}},
    ]
    by = json.dumps({"job": "research/gpt", "incident": "inc-1", "reason": "XID 79", "at": "now"})
    node = {
        "metadata": {"name": "n1", "annotations": {"holdfast.dev/cordoned-by": by}},
        "spec": {"taints": [{"key": "holdfast.dev/cordoned", "effect": "NoSchedule"}]},
    }
    old = {"metadata": {"name": "e", "namespace": "research", "creationTimestamp": "2026-01-01T00:00:00Z"}}
    kubernetes.answers |= {
        "GET /version": (200, {"gitVersion": "v1.37.2"}),
        f"GET {apps}/deployments": (
            lambda asked: some_jobs(watchdog) if "component%3Dwatchdog" in asked.path else some_jobs()
        ),
        f"GET {apps}/daemonsets": some_jobs(agents),
        f"GET {apps}/statefulsets": some_jobs(redis),
        "GET /api/v1/namespaces/holdfast/pods": some_jobs(*pods),
        "GET /api/v1/nodes": some_jobs(node),
        "GET /apis/holdfast.dev/v1alpha1/trainingjobs": refusal(403, "Forbidden", "no"),
        "GET /apis/holdfast.dev/v1alpha1/interventions": some_jobs({**old, "spec": {"action": "Evict"}}),
        "GET /apis": (200, {"groups": []}),
        f"GET {PROXY}/healthz": (503, {"status": "unavailable", "reason": "Redis is away"}),
        f"GET {PROXY}/v1/jobs": (200, [a_status()]),
        "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews": (
            lambda asked: (201, {"status": {"allowed": asked.body["spec"]["resourceAttributes"]["verb"] == "get"}})
        ),
    }


def test_the_doctor_gathers_what_it_may_see_and_says_what_it_may_not(
    kubernetes: FakeKubernetes, capsys: pytest.CaptureFixture[str]
) -> None:
    installed(kubernetes)
    assert answer(["doctor", "-o", "json"], Program.KUBECTL) == 1
    lines = {each["what"]: each for each in json.loads(capsys.readouterr().out)}
    assert lines["API server"]["level"] == "ok"
    assert lines["definition trainingjobs"]["says"] == "it is not installed"
    assert lines["operator"]["says"] == "there is none in namespace holdfast"
    assert lines["watchdog"]["says"] == "1 of 2 ready; b: CrashLoopBackOff back-off"
    assert lines["redis"]["says"].startswith("2 of 3 ready")
    assert lines["store"]["says"] == "Redis is away"
    assert lines["reading"]["level"] == "ok"
    assert lines["node n1"]["says"] == "taken out of service: XID 79 (job research/gpt, inc-1)"
    assert lines["jobs"]["says"].startswith("not known: user jane of context test may not do this")
    assert lines["intervention research/e"]["level"] == "FAIL"
    assert lines["rights"]["says"].startswith("you lack ")


def test_a_watchdog_that_is_away_is_told_in_the_api_servers_words(
    kubernetes: FakeKubernetes, capsys: pytest.CaptureFixture[str]
) -> None:
    installed(kubernetes)
    kubernetes.answers[f"GET {PROXY}/healthz"] = refusal(503, "ServiceUnavailable", "no endpoints available")
    assert answer(["doctor", "-o", "json"], Program.KUBECTL) == 1
    lines = {each["what"]: each for each in json.loads(capsys.readouterr().out)}
    assert lines["store"]["says"] == "not known: the watchdog does not answer: no endpoints available"


def test_the_doctor_says_names_of_what_failed_for_scripts(
    kubernetes: FakeKubernetes, capsys: pytest.CaptureFixture[str]
) -> None:
    installed(kubernetes)
    assert answer(["doctor", "-o", "name"], Program.KUBECTL) == 1
    assert "operator" in capsys.readouterr().out.splitlines()


MACHINE = Machine(
    python=(3, 12, 1),
    holdfast="0.1.0",
    torch="2.13.0+cpu",
    directory=Path("/x"),
    writable=True,
    disk_free_bytes=1 << 40,
    shm_free_bytes=1 << 34,
    port="free",
    run="",
)


def test_a_machine_that_has_everything_is_well() -> None:
    assert {each.level for each in examine_machine(MACHINE)} == {Level.OK}


@pytest.mark.parametrize(
    ("what", "change", "level"),
    [
        ("Python", {"python": (3, 10, 0)}, Level.FAIL),
        ("torch", {"torch": None}, Level.WARN),
        ("torch", {"torch": "2.1.0"}, Level.FAIL),
        ("state directory", {"writable": False}, Level.FAIL),
        ("disk", {"disk_free_bytes": 1}, Level.WARN),
        ("disk", {"disk_free_bytes": Unseen("no")}, Level.WARN),
        ("/dev/shm", {"shm_free_bytes": 64 << 20}, Level.WARN),
        ("port", {"port": Unseen("no port on loopback")}, Level.FAIL),
        ("run", {"run": Unseen("the watchdog does not answer")}, Level.WARN),
    ],
)
def test_what_a_machine_lacks_is_said(what: str, change: dict[str, Any], level: Level) -> None:
    (finding,) = [each for each in examine_machine(replace(MACHINE, **change)) if each.what == what]
    assert finding.level is level


def test_a_machine_without_a_run_is_looked_at_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    assert answer(["doctor"]) == 0
    assert "run              none here yet" in capsys.readouterr().out


def test_the_run_of_a_state_directory_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with fake_watchdog(tmp_path) as fake:
        fake.answers["GET status"] = (200, a_status())
        assert answer(["doctor", "--state-dir", str(tmp_path), "-o", "json"]) == 0
    shown = msgspec.json.decode(capsys.readouterr().out)
    assert shown[-1]["says"] == "research/gpt is Running"
