import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from fakekubernetes import (
    HOLDFAST,
    INTERVENTIONS,
    JOBS,
    PROXY,
    STANDBY,
    TOKEN,
    TOKEN_PATH,
    VIEWER_TOKEN,
    Answer,
    Asked,
    FakeKubernetes,
    a_job,
    fake_kubernetes,
    refusal,
    some_jobs,
    write_kubeconfig,
)
from wireobjects import a_rank, a_status, an_incident

from holdfast.api.intervention import Forecast, InterventionState
from holdfast.cli.main import answer
from holdfast.cli.target import Program

GPT = f"{JOBS}/gpt"
LIVE = f"{PROXY}/v1/jobs/research/gpt"
NO_ENDPOINTS = refusal(503, "ServiceUnavailable", 'no endpoints available for service "holdfast-watchdog:http"')


@pytest.fixture
def kubernetes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKubernetes]:
    with fake_kubernetes(tmp_path) as fake:
        monkeypatch.setenv("KUBECONFIG", str(fake.kubeconfig))
        monkeypatch.chdir(tmp_path)
        fake.answers[f"GET {JOBS}"] = some_jobs(a_job())
        fake.answers[f"GET {GPT}"] = (200, a_job())
        fake.answers[f"GET {LIVE}/status"] = (200, a_status())
        fake.answers[f"GET {LIVE}/ranks"] = (200, [a_rank(0)])
        fake.answers[f"GET {LIVE}/incidents"] = (200, [an_incident()])
        yield fake


def ask(*arguments: str) -> int:
    return answer(arguments, Program.KUBECTL)


def test_the_watchdog_is_shown_a_token_of_its_own_beside_the_persons_login(kubernetes: FakeKubernetes) -> None:
    assert ask("status", "gpt") == 0
    requested, read = kubernetes.asked
    assert requested.body["spec"] == {"audiences": ["holdfast"], "expirationSeconds": 600}
    assert read.headers["X-Holdfast-Token"] == VIEWER_TOKEN


@pytest.mark.usefixtures("kubernetes")
def test_what_is_shown_live_says_that_the_watchdog_said_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert ask("status", "gpt", "-o", "json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["source"], shown["step"]) == ("watchdog", 120)
    assert ask("status", "-o", "name") == 0
    assert capsys.readouterr().out == "trainingjob.holdfast.dev/gpt\n"
    assert ask("status", "gpt", "-o", "wide") == 0
    assert "said by        the watchdog" in capsys.readouterr().out


def test_whoever_meets_a_standby_asks_again(
    kubernetes: FakeKubernetes, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = iter([STANDBY, STANDBY, (200, a_status())])
    kubernetes.answers[f"GET {LIVE}/status"] = lambda _: next(answers)
    assert ask("status", "gpt", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["source"] == "watchdog"


def test_while_nobody_leads_the_record_answers(
    kubernetes: FakeKubernetes, capsys: pytest.CaptureFixture[str]
) -> None:
    kubernetes.answers[f"GET {LIVE}/status"] = STANDBY
    assert ask("status", "gpt", "-o", "json") == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["source"] != "watchdog"
    assert "stands by" in shown.err


@pytest.mark.usefixtures("kubernetes")
def test_a_phase_is_a_word_in_every_form(capsys: pytest.CaptureFixture[str]) -> None:
    assert ask("ranks", "gpt", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)[0]["phase"] == "forward"
    assert ask("ranks", "gpt", "-o", "yaml") == 0
    assert yaml.safe_load(capsys.readouterr().out)[0]["phase"] == "forward"


def test_while_the_watchdog_is_away_the_record_answers_and_says_so(
    kubernetes: FakeKubernetes, capsys: pytest.CaptureFixture[str]
) -> None:
    kubernetes.answers[f"GET {LIVE}/status"] = kubernetes.answers[f"GET {LIVE}/incidents"] = NO_ENDPOINTS
    recent = [{"id": "inc-2", "state": "Open", "kind": "Hang"}, {"id": "inc-1", "state": "Recovered"}]
    kubernetes.answers[f"GET {GPT}"] = (
        200,
        a_job(
            phase="Running",
            step=7,
            members={"wanted": 2, "ready": 1, "spares": 0},
            incidents=2,
            recentIncidents=recent,
            lastCheckpoint={"step": 5, "uri": "/c", "time": "2026-01-01T00:00:00Z"},
            conditions=[{"type": "WatchdogReachable", "status": "False", "message": "away since noon"}],
        ),
    )
    assert ask("status", "gpt") == 0
    said = capsys.readouterr()
    assert "phase          Running (away since noon)\n" in said.out
    assert "members        1 of 2 ready, 0 spare\n" in said.out
    assert "loss           ?\n" in said.out
    assert "incidents      1 open, 2 in all\n" in said.out
    assert "no endpoints available" in said.err
    assert "this is what the TrainingJob's status has recorded" in said.err
    assert ask("incidents", "gpt") == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["INCIDENT", "inc-1", "inc-2"]
    assert ask("why", "--job", "gpt") == 3


def test_when_neither_answers_both_reasons_are_told(
    kubernetes: FakeKubernetes, capsys: pytest.CaptureFixture[str]
) -> None:
    kubernetes.answers[f"GET {LIVE}/status"] = NO_ENDPOINTS
    kubernetes.answers[f"GET {GPT}"] = refusal(500, "InternalError", "etcd is gone")
    assert ask("status", "gpt") == 3
    said = capsys.readouterr().err
    assert "no endpoints available" in said
    assert "etcd is gone" in said


def test_a_status_of_another_version_is_unknown_rather_than_an_error(
    kubernetes: FakeKubernetes, capsys: pytest.CaptureFixture[str]
) -> None:
    kubernetes.answers[f"GET {LIVE}/status"] = NO_ENDPOINTS
    kubernetes.answers[f"GET {LIVE}/incidents"] = NO_ENDPOINTS
    kubernetes.answers[f"GET {GPT}"] = (200, a_job(step="seven"))
    assert ask("status", "gpt", "-o", "wide") == 0
    said = capsys.readouterr().out
    for fact in ("phase", "checkpoint", "checkpoint at", "checkpoints", "avoided nodes"):
        assert f"{fact:<15}?\n" in said
    assert "incidents      ? open, ? in all\n" in said
    assert ask("incidents", "gpt") == 3
    assert "nothing is recorded of the incidents of research/gpt" in capsys.readouterr().err


def test_how_many_members_train_is_unknown_while_nobody_sees_them(
    kubernetes: FakeKubernetes, capsys: pytest.CaptureFixture[str]
) -> None:
    kubernetes.answers[f"GET {LIVE}/status"] = NO_ENDPOINTS
    kubernetes.answers[f"GET {GPT}"] = (200, a_job(phase="Stalled", step=7, members={"wanted": 2, "spares": 0}))
    assert ask("status", "gpt") == 0
    assert "members        ?\n" in capsys.readouterr().out


@pytest.mark.parametrize(("total", "told"), [(1, "0 open, 1 in all"), (2, "? open, 2 in all")])
def test_an_incident_that_is_not_in_the_record_is_not_said_to_be_over(
    kubernetes: FakeKubernetes, capsys: pytest.CaptureFixture[str], total: int, told: str
) -> None:
    kubernetes.answers[f"GET {LIVE}/status"] = NO_ENDPOINTS
    recent = [{"id": "inc-2", "state": "Recovered"}]
    kubernetes.answers[f"GET {GPT}"] = (200, a_job(phase="Running", incidents=total, recentIncidents=recent))
    assert ask("status", "gpt") == 0
    said = capsys.readouterr().out
    assert f"incidents      {told}\n" in said
    assert "checkpoint     none\n" in said


@pytest.mark.parametrize(
    ("path", "missing"),
    [
        (
            f"GET {JOBS}",
            "the right to list trainingjobs.holdfast.dev, which the chart's ClusterRole ...-view gives",
        ),
        (f"POST {TOKEN_PATH}", "the right to create serviceaccounts/token holdfast-viewer"),
        (f"GET {LIVE}/ranks", "the right to get services/proxy holdfast-watchdog:http, which the chart's Role"),
    ],
)
def test_a_right_that_is_missing_is_named_with_the_role_that_has_it(
    kubernetes: FakeKubernetes, capsys: pytest.CaptureFixture[str], path: str, missing: str
) -> None:
    kubernetes.answers[path] = refusal(403, "Forbidden", "jane cannot")
    assert ask("ranks") == 1
    said = capsys.readouterr().err
    assert f"user jane of context test may not do this: it needs {missing}" in said
    assert "the API server says: jane cannot" in said


NO_RIGHT = refusal(403, "Forbidden", "jane cannot")
OWN_TOKEN_PATH = "/api/v1/namespaces/research/serviceaccounts/holdfast-namespace-viewer/token"


def test_who_may_read_one_namespace_shows_the_token_of_its_account(kubernetes: FakeKubernetes) -> None:
    kubernetes.answers[f"POST {TOKEN_PATH}"] = NO_RIGHT
    kubernetes.answers[f"POST {OWN_TOKEN_PATH}"] = (201, {"status": {"token": "of-research"}})
    assert ask("ranks", "gpt", "-o", "json") == 0
    (requested,) = [each for each in kubernetes.asked if each.path == OWN_TOKEN_PATH]
    assert requested.body["spec"] == {"audiences": ["holdfast"], "expirationSeconds": 600}
    reads = [each for each in kubernetes.asked if each.path.startswith(PROXY)]
    assert {each.headers["X-Holdfast-Token"] for each in reads} == {"of-research"}


@pytest.mark.parametrize("own", [NO_RIGHT, refusal(404, "NotFound", "no such account")], ids=["refused", "none"])
def test_who_may_get_no_token_is_told_of_both(
    kubernetes: FakeKubernetes, capsys: pytest.CaptureFixture[str], own: Answer
) -> None:
    kubernetes.answers[f"POST {TOKEN_PATH}"] = NO_RIGHT
    kubernetes.answers[f"POST {OWN_TOKEN_PATH}"] = own
    assert ask("ranks", "gpt") == 1
    said = capsys.readouterr().err
    assert "the right to create serviceaccounts/token holdfast-viewer, which the chart's Role ...-reader" in said
    assert (
        "or, for jobs of namespace research, the right to create serviceaccounts/token holdfast-namespace-viewer"
        in said
    )


@pytest.mark.parametrize("refused", [f"POST {TOKEN_PATH}", f"GET {LIVE}/status"])
def test_who_may_not_read_from_the_watchdog_reads_the_record(
    kubernetes: FakeKubernetes, capsys: pytest.CaptureFixture[str], refused: str
) -> None:
    kubernetes.answers[refused] = NO_RIGHT
    kubernetes.answers[f"GET {GPT}"] = (200, a_job(phase="Running"))
    assert ask("status", "gpt", "-o", "json") == 0
    shown = capsys.readouterr()
    assert (json.loads(shown.out)["source"], json.loads(shown.out)["phase"]) == ("record", "Running")
    assert "user jane of context test may not do this: it needs the right to" in shown.err
    assert "this is what the TrainingJob's status has recorded" in shown.err


def test_what_the_watchdog_itself_refuses_is_answered_from_the_record(
    kubernetes: FakeKubernetes, capsys: pytest.CaptureFixture[str]
) -> None:
    for each in ("status", "ranks"):
        kubernetes.answers[f"GET {LIVE}/{each}"] = (403, {"error": "this needs the right to get trainingjobs"})
    assert ask("ranks", "gpt") == 1
    assert ask("status", "gpt", "-o", "name") == 0
    assert "the watchdog refused the token of the account holdfast-viewer: this needs the right" in (
        capsys.readouterr().err
    )


def test_who_may_not_even_see_the_job_is_refused(
    kubernetes: FakeKubernetes, capsys: pytest.CaptureFixture[str]
) -> None:
    kubernetes.answers[f"POST {TOKEN_PATH}"] = NO_RIGHT
    kubernetes.answers[f"GET {GPT}"] = NO_RIGHT
    assert ask("status", "gpt") == 1
    assert "it needs the right to get trainingjobs.holdfast.dev, which the chart's" in capsys.readouterr().err


def test_definitions_that_are_not_installed_are_said_so(
    kubernetes: FakeKubernetes, capsys: pytest.CaptureFixture[str]
) -> None:
    kubernetes.answers[f"GET {JOBS}"] = refusal(
        404, "NotFound", "the server could not find the requested resource"
    )
    assert ask("status") == 3
    assert "its definition (CRD) is not installed; install the Helm chart" in capsys.readouterr().err


def test_a_service_that_is_not_there_asks_where_holdfast_is(
    kubernetes: FakeKubernetes, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = refusal(404, "NotFound", "services not found", "services", "holdfast-watchdog")
    kubernetes.answers[f"GET {LIVE}/ranks"] = gone
    assert ask("ranks", "gpt") == 3
    assert "there is no service holdfast-watchdog:http in namespace holdfast; say where" in capsys.readouterr().err


def test_a_watchdog_of_another_service_is_asked_by_its_name(
    kubernetes: FakeKubernetes, capsys: pytest.CaptureFixture[str]
) -> None:
    kubernetes.answers[f"POST {HOLDFAST}/serviceaccounts/prod-viewer/token"] = (201, {"status": {"token": "t"}})
    elsewhere = f"{HOLDFAST}/services/https:prod-watchdog:http/proxy/v1/jobs/research/gpt/ranks"
    kubernetes.answers[f"GET {elsewhere}"] = (200, [a_rank(0)])
    assert ask("ranks", "gpt", "--holdfast-service", "https:prod-watchdog:http") == 0
    assert ask("ranks", "gpt", "--holdfast-service", "prod") == 2
    assert "--holdfast-service: 'prod' is not accepted; write NAME:PORT" in capsys.readouterr().err


def test_several_jobs_are_listed_and_a_command_wants_one_named(
    kubernetes: FakeKubernetes, capsys: pytest.CaptureFixture[str]
) -> None:
    kubernetes.answers[f"GET {JOBS}"] = some_jobs(a_job("gpt", phase="Running"), a_job("llama"))
    assert ask("status") == 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == ["NAME", "gpt", "llama"]
    assert ask("ranks") == 2
    assert "name one of those in namespace research: gpt, llama" in capsys.readouterr().err


def test_a_job_nested_without_end_hides_no_other(
    kubernetes: FakeKubernetes, capsys: pytest.CaptureFixture[str]
) -> None:
    nested = msgspec.Raw(b'{"a":' * 9_000 + b"1" + b"}" * 9_000)
    kubernetes.answers[f"GET {JOBS}"] = some_jobs(a_job(), a_job("odd") | {"spec": {"template": nested}})
    assert ask("status") == 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == ["NAME", "gpt", "odd"]


def test_a_long_list_is_read_page_by_page(kubernetes: FakeKubernetes, capsys: pytest.CaptureFixture[str]) -> None:
    def page(asked: Asked) -> tuple[int, Any]:
        if "continue=more" in asked.path:
            return some_jobs(a_job("llama"))
        return 200, {"metadata": {"continue": "more"}, "items": [a_job("gpt")]}

    kubernetes.answers["GET /apis/holdfast.dev/v1alpha1/trainingjobs"] = page
    assert ask("status", "-A", "-o", "name") == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_an_intervention_is_created_and_its_outcome_awaited(
    kubernetes: FakeKubernetes, capsys: pytest.CaptureFixture[str]
) -> None:
    made = {"metadata": {"name": "evict-x", "namespace": "research"}}
    outcomes = iter([{}, {"status": {"state": "Pending"}}, {"status": {"state": "Done", "outcome": "left"}}])
    kubernetes.answers[f"POST {INTERVENTIONS}"] = (201, made)
    kubernetes.answers[f"GET {INTERVENTIONS}/evict-x"] = lambda _: (200, {**made, **next(outcomes)})
    assert ask("evict", "node-1", "--job", "gpt", "--reason", "smells") == 0
    assert capsys.readouterr().out == "Done: left\n"
    (created,) = [each for each in kubernetes.asked if each.method == "POST"]
    assert created.body["spec"] == {"job": "gpt", "action": "Evict", "reason": "smells", "node": "node-1"}
    assert "fieldManager=kubectl-holdfast" in created.path


@pytest.mark.usefixtures("kubernetes")
@pytest.mark.parametrize(
    ("words", "job"),
    [(["gpt"], "gpt"), (["take", "gpt"], "gpt"), (["--reason", "heat", "gpt"], "gpt"), (["verify"], "verify")],
)
def test_a_checkpoint_is_asked_of_a_job_though_its_name_is_a_word_for_files_elsewhere(
    capsys: pytest.CaptureFixture[str], words: list[str], job: str
) -> None:
    assert ask("checkpoint", *words, "--dry-run") == 0
    spec = yaml.safe_load(capsys.readouterr().out)["spec"]
    assert (spec["action"], spec["job"]) == ("Checkpoint", job)


@pytest.mark.parametrize(("arguments", "code"), [(["--timeout", "0.2"], 3), (["--no-wait"], 0)])
def test_an_outcome_is_awaited_as_long_as_is_said(
    kubernetes: FakeKubernetes, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int
) -> None:
    made = {"metadata": {"name": "pause-x", "namespace": "research"}}
    kubernetes.answers[f"POST {INTERVENTIONS}"] = (201, made)
    kubernetes.answers[f"GET {INTERVENTIONS}/pause-x"] = (200, made)
    assert ask("pause", "gpt", *arguments) == code
    said = capsys.readouterr()
    assert "pause-x was handed in" in said.out if code == 0 else "no outcome after 0.2 s" in said.err


def test_a_job_nobody_has_is_refused_before_anything_is_recorded(
    kubernetes: FakeKubernetes, capsys: pytest.CaptureFixture[str]
) -> None:
    kubernetes.answers[f"GET {JOBS}/gtp"] = refusal(404, "NotFound", "not found", "trainingjobs", "gtp")
    assert ask("pause", "gtp") == 2
    assert (
        "job: 'research/gtp' is not accepted; the jobs of namespace research are: gpt" in capsys.readouterr().err
    )
    assert [each.method for each in kubernetes.asked] == ["GET", "GET"]


def test_a_dry_run_of_the_client_only_reads(
    kubernetes: FakeKubernetes, capsys: pytest.CaptureFixture[str]
) -> None:
    kubernetes.answers[f"GET {LIVE}/forecast"] = (200, Forecast(InterventionState.DONE, "restoring step 100"))
    assert ask("rewind", "100", "-j", "gpt", "--dry-run", "--skip-batches", "3") == 0
    said = capsys.readouterr().out
    assert said.startswith("# It would be Done: restoring step 100\n")
    assert yaml.safe_load(said)["spec"]["rewind"] == {"toStep": 100, "skipBatches": 3, "learningRateScale": 1.0}
    token, read = kubernetes.asked
    assert (token.method, read.method) == ("POST", "GET")
    assert read.headers["X-Holdfast-Token"] == VIEWER_TOKEN, "a viewer may ask"


def test_a_dry_run_of_the_server_is_checked_by_it(
    kubernetes: FakeKubernetes, capsys: pytest.CaptureFixture[str]
) -> None:
    kubernetes.answers[f"POST {INTERVENTIONS}"] = refusal(422, "Invalid", "nodes is too large")
    assert ask("resize", "9", "-j", "gpt", "--dry-run=server") == 2
    assert "nodes is too large" in capsys.readouterr().err
    assert "dryRun=All" in kubernetes.asked[0].path


def test_a_login_that_is_not_accepted_names_who_and_where(
    kubernetes: FakeKubernetes, capsys: pytest.CaptureFixture[str]
) -> None:
    server = json.loads(kubernetes.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    write_kubeconfig(kubernetes.kubeconfig, server, {"token": "old"})
    assert ask("status") == 3
    assert f"the API server at {server} does not accept the login of user jane of" in capsys.readouterr().err


def test_an_unknown_context_or_a_file_that_is_none_is_named(
    kubernetes: FakeKubernetes, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask("status", "--context", "prod") == 2
    assert f"--context: 'prod' is not accepted; the contexts of {kubernetes.kubeconfig} are: test" in (
        capsys.readouterr().err
    )
    assert ask("status", "--kubeconfig", "/nowhere") == 2
    assert "--kubeconfig: '/nowhere' is not accepted; there is no such file" in capsys.readouterr().err
    kubernetes.kubeconfig.write_text("{")
    assert ask("status") == 2
    assert "the file is not YAML: " in capsys.readouterr().err
    kubernetes.kubeconfig.write_text("[]")
    assert ask("status") == 2


def test_flags_of_a_local_run_are_refused_by_kubectl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask("status", "--state-dir", str(tmp_path)) == 2
    assert "leave it out; kubectl holdfast means a cluster" in capsys.readouterr().err


def test_holdfast_reads_the_cluster_when_it_is_told_to(kubernetes: FakeKubernetes) -> None:
    assert answer(["status", "gpt", "--context", "test"]) == 0
    assert answer(["status", "gpt"]) == 0  # KUBECONFIG is set, and no run is here
    assert len(kubernetes.asked) == 4


def test_several_kubeconfig_files_are_read_as_one(
    kubernetes: FakeKubernetes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_kubeconfig(tmp_path / "other", "http://127.0.0.1:1", {"token": "x"})
    other = json.loads((tmp_path / "other").read_text())
    other["contexts"][0]["name"] = "second"
    (tmp_path / "other").write_text(json.dumps(other))
    monkeypatch.setenv("KUBECONFIG", f"{kubernetes.kubeconfig}:{tmp_path / 'other'}:{tmp_path / 'absent'}")
    assert ask("status", "gpt") == 0
    assert (
        ask("status", "gpt", "--context", "second") == 0
    )  # the cluster of the first file wins, as kubectl has it
    assert ask("status", "gpt", "--context", "third") == 2


@pytest.mark.parametrize(
    "login", [{"exec": {"command": "sh", "args": ["-c", "exit 1"]}}, {"exec": {"command": "no-such"}}]
)
def test_a_login_plugin_that_fails_is_not_asked_as_nobody(
    kubernetes: FakeKubernetes, capsys: pytest.CaptureFixture[str], login: dict[str, Any]
) -> None:
    server = json.loads(kubernetes.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    version = {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never"}
    write_kubeconfig(kubernetes.kubeconfig, server, {"exec": {**version, **login["exec"]}})
    assert ask("status", "gpt") == 3
    assert "the login of context test did not work: " in capsys.readouterr().err
    assert kubernetes.asked == []


def test_in_a_pod_its_own_account_is_used_where_no_file_is(
    kubernetes: FakeKubernetes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[Any] = []

    def load(client_configuration: Any) -> None:
        server = json.loads(kubernetes.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
        client_configuration.host = server
        client_configuration.api_key["authorization"] = f"Bearer {TOKEN}"
        loaded.append(client_configuration)

    (tmp_path / "namespace").write_text("research\n")
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setattr("kubernetes.config.load_incluster_config", load)
    monkeypatch.setattr("holdfast.cli.cluster.kubeapi.POD_NAMESPACE_FILE", tmp_path / "namespace")
    assert ask("status", "gpt") == 0
    assert len(loaded) == 1
    monkeypatch.setattr("holdfast.cli.cluster.kubeapi.POD_NAMESPACE_FILE", tmp_path / "absent")
    assert ask("status", "gpt") == 3
