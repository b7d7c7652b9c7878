"""A run in MLflow, by its REST interface: no client library, so nothing is called but the one address.

MLflow keeps every value that is logged of a step, so rows come here once they are final. Each row also says its
step as the metric `step`: the newest value of it is how far the run has come.
Source: https://mlflow.org/docs/latest/api_reference/rest-api.html
"""

import base64
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from holdfast.api.errors import InvalidInput, Problem, Unavailable
from holdfast.api.policy import MlflowTarget
from holdfast.console.trackers.reach import AllowedHosts, Reply, call
from holdfast.console.trackers.records import Ended, Note
from holdfast.console.trackers.settling import Retold, Shown
from holdfast.console.trackers.tracker import RunIdentity

FIELD: Final = "spec.reporting.mlflow.uri"
TOKEN: Final = "MLFLOW_TRACKING_TOKEN"
USERNAME: Final = "MLFLOW_TRACKING_USERNAME"
PASSWORD: Final = "MLFLOW_TRACKING_PASSWORD"
KEY_TAG: Final = "holdfast.run"
STEP: Final = "step"
# Limits of one request. Source: https://mlflow.org/docs/latest/api_reference/rest-api.html#request-limits
METRICS_MAX: Final = 1000
TAG_CHARACTERS_MAX: Final = 5000
_ABSENT: Final = 404


class MlflowRun:
    """The job's run. `environment` has the credentials, if the server asks for some."""

    forgets = False
    shows = True

    def __init__(
        self, identity: RunIdentity, target: MlflowTarget, allowed: AllowedHosts, environment: Mapping[str, str]
    ) -> None:
        self._identity = identity
        self._target = target
        self._allowed = allowed
        self._headers = {"Content-Type": "application/json", **_authorization(environment)}
        self._run_id: str | None = None

    def open(self, series: str, published: int) -> int:
        if self._run_id is None:
            self._run_id = self._found() or self._created()
            self._post("runs/update", {"run_id": self._run_id, "status": "RUNNING"})
        run = self._get(f"runs/get?run_id={self._run_id}")["run"]
        steps = [each["value"] for each in run["data"].get("metrics", ()) if each["key"] == series + STEP]
        return int(steps[0]) if steps else -1

    def _experiment(self) -> str:
        name = self._target.experiment or self._identity.job
        created = self._call("POST", "experiments/create", {"name": name})
        if created.is_good:
            return str(json.loads(created.body)["experiment_id"])
        found = self._call("POST", "experiments/search", {"filter": f"name = '{name}'", "max_results": 1})
        experiments = self._content(found, "experiments/search").get("experiments", ())
        if not experiments:
            self._content(created, "experiments/create")  # raises what the server said
            raise InvalidInput(
                Problem("spec.reporting.mlflow.experiment", name, "restore it, or name another one")
            )
        return str(experiments[0]["experiment_id"])

    def _found(self) -> str | None:
        """The first that was made. A server that was slow may have made another one for a request that nobody
        waited for any more: nothing was written to that, and it is deleted.
        """
        self._experiment_id = self._experiment()
        wanted = {
            "experiment_ids": [self._experiment_id],
            "filter": f"tags.`{KEY_TAG}` = '{self._identity.key}'",
            "order_by": ["attributes.start_time ASC"],
        }
        first, *others = self._post("runs/search", wanted).get("runs", ()) or (None,)
        for each in others:
            if not each["data"].get("metrics"):
                self._post("runs/delete", {"run_id": each["info"]["run_id"]})
        return str(first["info"]["run_id"]) if first is not None else None

    def _created(self) -> str:
        tags = {KEY_TAG: self._identity.key, "holdfast.job": self._identity.job}
        wanted = {
            "experiment_id": self._experiment_id,
            "run_name": self._identity.name,
            "start_time": time.time_ns() // 10**6,
            "tags": [{"key": key, "value": value} for key, value in tags.items()],
        }
        made = str(self._post("runs/create", wanted)["run"]["info"]["run_id"])
        return self._found() or made

    def show(self, rows: Sequence[Shown]) -> None:
        for metrics in _batches(rows):
            self._post("runs/log-batch", {"run_id": self._run_id, "metrics": metrics})

    def back(self, step: int) -> None:
        raise NotImplementedError("MLflow forgets nothing")

    def note(self, note: Note | Retold) -> None:
        if isinstance(note, Retold):
            key = f"holdfast.given-up.{note.series.rstrip('/')}"
            said = f"steps {note.after + 1} to {note.until} were given up; those that count are {note.series}*"
        else:
            key = f"holdfast.incident.{note.id}"
            said = f"{note.event} at step {note.step}: {note.title}. {note.text}"
        tag = {"run_id": self._run_id, "key": key, "value": said[:TAG_CHARACTERS_MAX]}
        self._post("runs/set-tag", tag)

    def close(self, ended: Ended | None) -> None:
        if self._run_id is None:
            return
        run_id, self._run_id = self._run_id, None
        if ended is not None:
            status = "FINISHED" if ended.succeeded else "FAILED"
            self._post("runs/update", {"run_id": run_id, "status": status, "end_time": int(ended.at * 1000)})

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._content(self._call("POST", path, body), path)

    def _get(self, path: str) -> Any:
        return self._content(self._call("GET", path, None), path)

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None) -> Reply:
        url = f"{self._target.uri.rstrip('/')}/api/2.0/mlflow/{path}"
        content = b"" if body is None else json.dumps(body).encode()
        return call(self._allowed, method, url, body=content, headers=self._headers, field=FIELD)

    def _content(self, reply: Reply, path: str) -> Any:
        """Raises Unavailable, and InvalidInput for what the server will never take."""
        if reply.is_good:
            try:
                return json.loads(reply.body)
            except ValueError as error:
                raise Unavailable(f"MLflow answers {path} with no JSON: {error}") from error
        says = f"MLflow answers {path} with status {reply.status}: {reply.body[:300].decode('utf-8', 'replace')}"
        if reply.may_change or reply.status == _ABSENT:
            raise Unavailable(says)
        fix = "name the server itself, it redirects" if 300 <= reply.status < 400 else says
        raise InvalidInput(Problem(FIELD, self._target.uri, fix))


def _batches(rows: Sequence[Shown]) -> Iterator[list[dict[str, Any]]]:
    """Whole rows, as many as one request takes; the step of a row is the last of it that is said."""
    batch: list[dict[str, Any]] = []
    for row in rows:
        values = {**row.values, STEP: float(row.step)}
        at_ms = int(row.at * 1000)
        metrics = [
            {"key": row.series + name, "value": _number(value), "timestamp": at_ms, "step": row.step}
            for name, value in values.items()
        ]
        if batch and len(batch) + len(metrics) > METRICS_MAX:
            yield batch
            batch = []
        batch += metrics
        while len(batch) > METRICS_MAX:
            yield batch[:METRICS_MAX]
            batch = batch[METRICS_MAX:]
    if batch:
        yield batch


def _number(value: float) -> float | str:
    """As protobuf's JSON spells it. Source: https://protobuf.dev/programming-guides/json/ (double)"""
    if value != value:
        return "NaN"
    if value - value != 0.0:
        return "Infinity" if value > 0 else "-Infinity"
    return value


def _authorization(environment: Mapping[str, str]) -> dict[str, str]:
    if token := environment.get(TOKEN):
        return {"Authorization": f"Bearer {token}"}
    if (name := environment.get(USERNAME)) is not None:
        both = f"{name}:{environment.get(PASSWORD, '')}"
        return {"Authorization": f"Basic {base64.b64encode(both.encode()).decode()}"}
    return {}
