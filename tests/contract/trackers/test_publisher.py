"""What a publisher is given of a job: trackers, as far as the cluster lets them be called, and credentials."""

import base64
import importlib.util
from pathlib import Path

import pytest
from aiohttp import web
from http_fake import serving

from holdfast.api.errors import InvalidInput
from holdfast.api.policy import MlflowTarget, ReportingPolicy, WandbTarget
from holdfast.console.trackers.credentials import NamespaceSecrets
from holdfast.console.trackers.desk import run_key
from holdfast.console.trackers.mlflowrun import MlflowRun
from holdfast.console.trackers.publisher import Task, check_packages, trackers_of

EVERYTHING = ReportingPolicy(
    wandb=WandbTarget("gpt", url="https://wandb.example"),
    mlflow=MlflowTarget("https://mlflow.example:8443", "gpt"),
    tensorboard=True,
    webhook="https://hooks.example/oncall",
)


def task(*allowed: str, reporting: ReportingPolicy = EVERYTHING) -> Task:
    return Task("research/gpt", "key", reporting, "/spool", "/events", allowed)


def refused(*allowed: str, reporting: ReportingPolicy = EVERYTHING, **environment: str) -> dict[str, str]:
    made = trackers_of(task(*allowed, reporting=reporting), environment)
    return {name: str(each) for name, each in made.items() if isinstance(each, InvalidInput)}


def test_only_what_the_cluster_names_is_called() -> None:
    assert refused("wandb.example", "mlflow.example:8443", "hooks.example") == {}
    assert refused("*") == {}
    said = refused("mlflow.example", "hooks.example:1")
    assert set(said) == {"wandb", "mlflow", "webhook"}
    assert "spec.reporting.wandb.url: 'https://wandb.example' is not accepted" in said["wandb"]
    assert "spec.reporting.mlflow.uri" in said["mlflow"]
    assert "spec.reporting.webhook" in said["webhook"]


def test_wandb_is_its_own_server_unless_the_job_says_otherwise_and_offline_calls_nobody() -> None:
    job = ReportingPolicy(wandb=WandbTarget("gpt"))
    assert "https://api.wandb.ai" in refused(reporting=job)["wandb"]
    assert refused("api.wandb.ai", reporting=job) == {}
    assert refused(reporting=job, WANDB_MODE="offline") == {}


def test_the_tracking_server_may_come_from_the_environment_and_is_held_to_the_same_list() -> None:
    job = ReportingPolicy(mlflow=MlflowTarget())
    assert "'' is not accepted; write https://HOST/path" in refused("*", reporting=job)["mlflow"]
    assert refused(reporting=job, MLFLOW_TRACKING_URI="https://mlflow.example").keys() == {"mlflow"}
    made = trackers_of(task("mlflow.example", reporting=job), {"MLFLOW_TRACKING_URI": "https://mlflow.example"})
    assert isinstance(made["mlflow"], MlflowRun)
    assert refused("*", reporting=job, MLFLOW_TRACKING_URI="file:///etc").keys() == {"mlflow"}


def test_a_package_that_is_missing_is_told_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    check_packages(EVERYTHING)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InvalidInput) as told:
        check_packages(EVERYTHING)
    assert str(told.value) == (
        "spec.reporting.wandb: None is not accepted; install it: pip install 'holdfast[reporting]'; "
        "spec.reporting.tensorboard: None is not accepted; install it: pip install 'holdfast[reporting]'"
    )
    check_packages(ReportingPolicy(webhook="https://hooks.example"))


async def test_a_publisher_has_what_its_own_namespaces_secret_says_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "the program's own")
    monkeypatch.setenv("PATH", "/bin")
    (tmp_path / "token").write_text("t0ken")
    said = {"WANDB_API_KEY": "key of research", "HTTPS_PROXY": "https://evil.example", "PYTHONPATH": "/tmp"}
    asked = []

    async def answer(request: web.Request) -> web.Response:
        asked.append((request.path, request.headers["Authorization"]))
        if "/research/" not in request.path:
            return web.json_response({"kind": "Status", "code": 404, "reason": "NotFound"}, status=404)
        data = {name: base64.b64encode(value.encode()).decode() for name, value in said.items()}
        return web.json_response({"kind": "Secret", "data": data})

    async with serving(answer) as server:
        secrets = NamespaceSecrets(server, tmp_path)
        try:
            found = await secrets.environment("research", "holdfast-reporting")
            other = await secrets.environment("another", "holdfast-reporting")
        finally:
            await secrets.close()
    assert found["WANDB_API_KEY"] == "key of research"
    assert "HTTPS_PROXY" not in found
    assert found.get("PYTHONPATH") != "/tmp"
    assert "WANDB_API_KEY" not in other
    assert other["PATH"] == "/bin"
    assert asked[0] == ("/api/v1/namespaces/research/secrets/holdfast-reporting", "Bearer t0ken")


def test_a_run_is_named_by_its_uid_or_by_what_its_folder_keeps(tmp_path: Path) -> None:
    assert run_key(tmp_path / "a", "research/gpt", "1-2") == run_key(tmp_path / "b", "research/gpt", "1-2")
    assert run_key(tmp_path, "research/gpt", "1-2") != run_key(tmp_path, "research/gpt", "1-3")
    own = run_key(tmp_path, "research/gpt", "")
    assert run_key(tmp_path, "research/gpt", "") == own
    assert run_key(tmp_path / "fresh", "research/gpt", "") != own
