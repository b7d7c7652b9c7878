"""Reads from a running watchdog, over the standard library's HTTP client so that a read starts at once."""

import http.client
from typing import TypeVar

import msgspec

from holdfast.api.errors import HoldfastError, InvalidInput, Problem, Unavailable
from holdfast.api.incident import Incident
from holdfast.api.intervention import InterventionOutcome, InterventionRequest
from holdfast.api.status import JobStatus, RankStatus
from holdfast.cli.statedirectory import ListeningAt

Content = TypeVar("Content")
ANSWER_TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 64 << 20
INCIDENTS = "incidents?limit=1000"


class Explanation(msgspec.Struct):
    """How the watchdog words a refusal."""

    error: str = ""


class WatchdogClient:
    """One job at one watchdog. Every call raises Unavailable when the watchdog does not answer."""

    def __init__(self, at: ListeningAt, token: str, job: str) -> None:
        self._at = at
        self._token = token
        self._job = job

    def status(self) -> JobStatus:
        return msgspec.json.decode(self._ask("GET", "status"), type=JobStatus)

    def ranks(self) -> tuple[RankStatus, ...]:
        return msgspec.json.decode(self._ask("GET", "ranks"), type=tuple[RankStatus, ...])

    def incidents(self) -> tuple[Incident, ...]:
        """Oldest first; the watchdog answers with the newest first."""
        return msgspec.json.decode(self._ask("GET", INCIDENTS), type=tuple[Incident, ...])[::-1]

    def intervene(self, request: InterventionRequest) -> InterventionOutcome:
        """Ask for an intervention and wait, bounded, for what became of it."""
        return msgspec.json.decode(
            self._ask("POST", "interventions", msgspec.json.encode(request)), type=InterventionOutcome
        )

    def _ask(self, method: str, resource: str, body: bytes | None = None) -> bytes:
        connection = http.client.HTTPConnection(self._at.host, self._at.port, timeout=ANSWER_TIMEOUT_S)
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        try:
            connection.request(method, f"/v1/jobs/{self._job}/{resource}", body, headers)
            response = connection.getresponse()
            content = response.read(MAX_ANSWER_BYTES)
        except (OSError, http.client.HTTPException) as error:
            where = f"{self._at.host}:{self._at.port}"
            raise Unavailable(f"the watchdog does not answer at {where} ({error}); is the run alive?") from error
        finally:
            connection.close()
        if response.status >= 400:
            raise _refusal(response.status, content, self._job)
        return content


def _refusal(status: int, content: bytes, job: str) -> HoldfastError:
    said = explanation(content)
    if status in (401, 403):
        return Unavailable(f"the watchdog refused the token of this state directory: {said or status}")
    if status == 404:
        return InvalidInput(Problem("job", job, said or "the watchdog does not know it"))
    if status < 500:
        return InvalidInput(Problem("request", job, said or f"the watchdog answered {status}"))
    return Unavailable(f"the watchdog answered {status}: {said or 'no reason given'}")


def explanation(content: bytes) -> str:
    """The sentence in a refusal's body, empty when there is none."""
    try:
        return msgspec.json.decode(content, type=Explanation).error
    except msgspec.DecodeError:
        return ""
