"""Jobs in a cluster: live from the watchdog, and from their record at the API server where that cannot be."""

import time
import urllib.parse
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from holdfast.api.errors import InvalidInput, Problem, Unavailable
from holdfast.api.incident import Incident
from holdfast.api.intervention import InterventionState
from holdfast.cli.cluster import kubeapi
from holdfast.cli.cluster.proxiedline import Installation, ProxiedLine
from holdfast.cli.cluster.record import JobRecord, incidents_in, read_record, seen_in
from holdfast.cli.figures import series_path
from holdfast.cli.logs import KeptLogs, LogLine, LogRequest
from holdfast.cli.output import remark
from holdfast.cli.seen import RecordedIncidents, SeenStatus
from holdfast.cli.target import Target, only_one, split_job
from holdfast.cli.watchdogclient import WatchdogClient
from holdfast.cli.watchdogsource import Answer, Document, WatchdogSource
from holdfast.wire.kube.reply import Reply

GROUP_PATH: Final = "/apis/holdfast.dev/v1alpha1"
FIELD_MANAGER: Final = "kubectl-holdfast"
RETRY_FIRST_S: Final = 0.1
RETRY_MAX_S: Final = 1.0


class ClusterSource(WatchdogSource):
    """One job; says on stderr when it answers from the record."""

    def __init__(self, api: kubeapi.KubeApi, jobs: "TrainingJobs", line: ProxiedLine, job: str) -> None:
        super().__init__(WatchdogClient(line, job))
        self._api = api
        self._jobs = jobs
        self._line = line

    def status(self) -> SeenStatus:
        try:
            return super().status()
        except (Unavailable, kubeapi.Forbidden, InvalidInput) as error:
            return seen_in(self._recorded(error), datetime.now(UTC).timestamp())

    def incidents(self) -> tuple[Incident, ...] | RecordedIncidents:
        try:
            return super().incidents()
        except (Unavailable, kubeapi.Forbidden, InvalidInput) as error:
            return incidents_in(self._recorded(error))

    def series(self) -> bytes:
        """From the console of the installation, by the token that reads are made with."""
        return self._line.console(series_path(self.job))

    def logs(self, request: LogRequest) -> Iterator[LogLine]:
        from holdfast.cli.cluster.podlogs import PodLogs, launcher_container, lines_of

        record = self._jobs.get(self.job)
        logs = PodLogs(self._api, record.metadata.namespace, launcher_container(record.spec))
        return lines_of(logs, self._client.ranks(), request, KeptLogs(self._client, datetime.now(UTC).timestamp()))

    def _recorded(self, error: Exception) -> JobRecord:
        """The record in place of an answer. Raises Unavailable when neither is there, InvalidInput."""
        try:
            record = self._jobs.get(self.job)
        except Unavailable as second:
            raise Unavailable(f"{error}; and {second}") from error
        remark(f"{error}; this is what the TrainingJob's status has recorded")
        return record


class TrainingJobs:
    """TrainingJobs at the API server. Every call raises Unavailable, Forbidden, InvalidInput."""

    def __init__(self, api: kubeapi.KubeApi) -> None:
        self._api = api

    def list(self, namespace: str | None) -> tuple[JobRecord, ...]:
        """Those of a namespace, or of all."""
        path = f"{GROUP_PATH}/trainingjobs" if namespace is None else _jobs_path(namespace)
        items = kubeapi.listed(
            lambda query: self.understood(self._api.ask("GET", path, query=query), kubeapi.LIST_JOBS)
        )
        return tuple(read_record(item) for item in items)

    def get(self, job: str) -> JobRecord:
        namespace, _, name = job.partition("/")
        reply = self._api.ask("GET", f"{_jobs_path(namespace)}/{name}")
        if reply.status == 404 and _is_installed(reply):
            others = ", ".join(each.metadata.name for each in self.list(namespace)) or "none"
            raise InvalidInput(Problem("job", job, f"the jobs of namespace {namespace} are: {others}"))
        return read_record(self.understood(reply, kubeapi.GET_JOB))

    def document(self, job: str) -> Document:
        """A TrainingJob as the API server has it, with every field."""
        namespace, _, name = job.partition("/")
        reply = self._api.ask("GET", f"{_jobs_path(namespace)}/{name}")
        found: Document = self.understood(reply, kubeapi.GET_JOB)
        return found

    def patch(self, job: str, operations: Sequence[Document]) -> None:
        """Change a TrainingJob by a JSON patch, whole or not at all: a `test` in it that fails changes nothing.

        Source: https://www.rfc-editor.org/rfc/rfc6902
        """
        namespace, _, name = job.partition("/")
        path, query = f"{_jobs_path(namespace)}/{name}", {"fieldManager": FIELD_MANAGER}
        headers = {"Content-Type": "application/json-patch+json"}
        reply = self._api.ask("PATCH", path, list(operations), query=query, headers=headers)
        self.understood(reply, kubeapi.PATCH_JOB)

    def understood(self, reply: Reply, right: kubeapi.Right) -> Any:
        """What an answer about one of our kinds holds."""
        if reply.status == 404 and not _is_installed(reply):
            raise Unavailable(
                "the cluster knows no TrainingJob: its definition (CRD) is not installed; install the Helm chart"
            )
        return self._api.taken(reply, right)


class ClusterSite:
    """The jobs of a cluster. Raises InvalidInput, Unavailable."""

    def __init__(self, target: Target) -> None:
        self._api = kubeapi.connect(target)
        self._target = target
        self._namespace = target.namespace or self._api.namespace
        self._jobs = TrainingJobs(self._api)
        self._installation = Installation.of(target.holdfast_namespace, target.holdfast_service)

    def statuses(self) -> tuple[SeenStatus, ...]:
        """As recorded: the list is one request, and right while the watchdog is away."""
        namespace = None if self._target.all_namespaces else self._namespace
        now = datetime.now(UTC).timestamp()
        return tuple(seen_in(record, now) for record in self._jobs.list(namespace))

    def source(self) -> ClusterSource:
        named = self._target.job
        if named is None:
            names = tuple(record.metadata.name for record in self._jobs.list(self._namespace))
            named = only_one(names, f"namespace {self._namespace}")
        namespace, name = split_job(named, self._namespace)
        if self._target.namespace not in (None, namespace):
            raise InvalidInput(Problem("job", named, f"it contradicts --namespace {self._target.namespace}"))
        line = ProxiedLine(self._api, self._installation, namespace)
        return ClusterSource(self._api, self._jobs, line, f"{namespace}/{name}")

    def jobs(self) -> TrainingJobs:
        """The TrainingJobs themselves."""
        return self._jobs

    def check(self, document: Document) -> Document:
        """Have the API server check an Intervention and change nothing."""
        checked: Document = self._create(document, {"dryRun": "All"})
        checked["metadata"].pop("managedFields", None)
        return checked

    def hand_in(self, document: Document, timeout_s: float) -> Answer:
        """Creates the object and looks at its status; a name nobody has is refused before it is recorded."""
        self._jobs.get(f"{document['metadata']['namespace']}/{document['spec']['job']}")
        created = self._create(document, {})
        deadline = time.monotonic() + timeout_s
        wait_s, found = RETRY_FIRST_S, _answer(created)
        while found.state is InterventionState.PENDING and time.monotonic() < deadline:
            time.sleep(min(wait_s, max(0.0, deadline - time.monotonic())))
            wait_s = min(2 * wait_s, RETRY_MAX_S)
            path = f"{_interventions_path(document)}/{found.name}"
            found = _answer(self._api.get(path, kubeapi.GET_INTERVENTION))
        return found

    def _create(self, document: Document, query: dict[str, str]) -> Any:
        query = {"fieldManager": FIELD_MANAGER, **query}
        reply = self._api.ask("POST", _interventions_path(document), document, query=query)
        return self._jobs.understood(reply, kubeapi.CREATE_INTERVENTION)


def _jobs_path(namespace: str) -> str:
    return f"{GROUP_PATH}/namespaces/{urllib.parse.quote(namespace, safe='')}/trainingjobs"


def _interventions_path(document: Document) -> str:
    return f"{GROUP_PATH}/namespaces/{document['metadata']['namespace']}/interventions"


def _answer(intervention: Document) -> Answer:
    status = intervention.get("status") or {}
    state = status.get("state")
    known = InterventionState(state) if state in list(InterventionState) else InterventionState.PENDING
    return Answer(intervention["metadata"]["name"], known, str(status.get("outcome") or ""))


def _is_installed(reply: Reply) -> bool:
    """Whether a 404 is about one object: of a kind it does not know, the API server says only that."""
    said = reply.said()
    return said is not None and said.details is not None and bool(said.details.name)
