"""What is read of a job at a watchdog, whichever way its answers come (`Line`); and the way by its address."""

import http.client
import random
import socket
import ssl
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

import msgspec

from holdfast.api.decoding import decode_json
from holdfast.api.errors import Damaged, Malformed, Unavailable
from holdfast.api.event import Journaled
from holdfast.api.fleet import FLEET_PATH, FleetReport
from holdfast.api.incident import Incident
from holdfast.api.intervention import Forecast, InterventionOutcome, InterventionRequest
from holdfast.api.ledger import LedgerReport
from holdfast.api.plan import Plan
from holdfast.api.profile import ProfileStatus
from holdfast.api.round import Desired
from holdfast.api.stacks import Standstill
from holdfast.api.standing import STANDING_HEADER
from holdfast.api.status import JobStatus, NodeStatus, RankStatus
from holdfast.api.workeroutput import KeptOutput
from holdfast.cli.output import instant, remark
from holdfast.watchdog.store.store import Snapshot
from holdfast.wire.access import Access, untrusted
from holdfast.wire.answer import from_leader, refusal

Content = TypeVar("Content")
ANSWER_TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 64 << 20
INCIDENTS = "incidents?limit=1000"


class Line(Protocol):
    """The way to a watchdog. `subject` is the job a refusal is about."""

    def ask(self, method: str, path: str, body: bytes | None = None, *, subject: str = "") -> bytes:
        """The answer's content. Raises Unavailable when there is none, InvalidInput when it is a refusal."""
        ...


@dataclass(frozen=True, slots=True)
class _Reply:
    status: int
    headers: Mapping[str, str]
    content: bytes


class DirectLine:
    """To a watchdog by its address, over the standard library's HTTP client so that a read starts at once.

    `token_of` says in an error whose token was not taken.
    """

    def __init__(self, access: Access, *, token_of: str) -> None:
        """Raises Unavailable when the token or the certificate authority cannot be read."""
        self._address = access.address
        self._token = access.credential.read()
        self._trusted = access.trust.context()
        self._token_of = token_of

    def ask(self, method: str, path: str, body: bytes | None = None, *, subject: str = "") -> bytes:
        reply = from_leader(lambda: self._ask_once(method, path, body))
        if reply.status >= 400:
            raise refusal(reply.status, reply.content, subject or path, self._token_of)
        return reply.content

    def _ask_once(self, method: str, path: str, body: bytes | None) -> _Reply:
        """Over a connection of its own, so that the name may lead to another watchdog."""
        host, port = self._address.host, self._address.port
        connection = http.client.HTTPConnection(host, port, timeout=ANSWER_TIMEOUT_S)
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        try:
            # To any of the name's addresses: behind one is the leader.
            resolved = random.choice(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))[-1]
            connection.sock = socket.create_connection((str(resolved[0]), port), timeout=ANSWER_TIMEOUT_S)
            if self._trusted is not None:
                connection.sock = self._trusted.wrap_socket(connection.sock, server_hostname=host)
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            standing = {STANDING_HEADER: response.headers.get(STANDING_HEADER, "")}
            return _Reply(response.status, standing, response.read(MAX_ANSWER_BYTES))
        except ssl.SSLCertVerificationError as error:
            raise Unavailable(untrusted(self._address, error)) from error
        except (OSError, http.client.HTTPException) as error:
            where = f"{self._address} ({error})"
            raise Unavailable(f"the watchdog does not answer at {where}; is the run alive?") from error
        finally:
            connection.close()


class JournalPage(msgspec.Struct, frozen=True):
    """Some lines, and the `after` that gives the next ones; None when these were the last."""

    lines: tuple[Journaled, ...]
    next_after: int | None
    first: int = 1
    compacted_at: float | None = None


class WatchdogClient:
    """One job at one watchdog. Every call raises as `Line.ask`, and Damaged when the answer is not understood."""

    def __init__(self, line: Line, job: str) -> None:
        self._line = line
        self.job = job

    def status(self) -> JobStatus:
        return self._read("status", JobStatus)

    def ranks(self) -> tuple[RankStatus, ...]:
        return self._read("ranks", tuple[RankStatus, ...])

    def incidents(self) -> tuple[Incident, ...]:
        """Oldest first; the watchdog answers with the newest first."""
        return self._read(INCIDENTS, tuple[Incident, ...])[::-1]

    def nodes(self) -> tuple[NodeStatus, ...]:
        return self._read("nodes", tuple[NodeStatus, ...])

    def ledger(self) -> LedgerReport:
        """Where every GPU-second went."""
        return self._read("ledger", LedgerReport)

    def fleet(self) -> FleetReport:
        """What all jobs of its watchdog together know of the fleet."""
        return decoded(self._line.ask("GET", FLEET_PATH), FleetReport)

    def standing(self) -> Standstill:
        """Where the ranks stand now."""
        return self._read("stacks", Standstill)

    def profiled(self) -> ProfileStatus:
        """The newest profile, as far as ranks have told of it. Raises InvalidInput where nobody asked for one."""
        return self._read("profile", ProfileStatus)

    def outputs(self, *, rank: int | None = None, node: str | None = None) -> tuple[KeptOutput, ...]:
        """The end of what gone processes wrote, of a rank or, without one, on a node: newest first."""
        asked: dict[str, str | int] = {"node": node or ""} if rank is None else {"rank": rank}
        return self._read(f"logs?{urllib.parse.urlencode(asked)}", tuple[KeptOutput, ...])

    def journal(self, after: int) -> Iterator[Journaled]:
        """Every line of the journal behind the line `after`, read page by page; stderr says which are gone."""
        onward: int | None = after
        while onward is not None:
            page = self._read(f"journal?after={onward}", JournalPage)
            if onward + 1 < page.first:
                remark(gone_text(page.first, page.compacted_at))
            yield from page.lines
            onward = page.next_after

    def origin(self) -> Snapshot:
        """The state that the kept journal begins behind."""
        return self._read("origin", Snapshot)

    def plan(self) -> Plan | None:
        plan: Plan | None = self._read("plan", Plan | None)  # type: ignore[arg-type]  # msgspec takes a union
        return plan

    def desired(self) -> Desired | None:
        """What the launchers are shown."""
        desired: Desired | None = self._read("round", Desired | None)  # type: ignore[arg-type]  # the same
        return desired

    def intervene(self, request: InterventionRequest) -> InterventionOutcome:
        """Ask for an intervention and wait shortly for what became of it. The same id again is the same one."""
        body = msgspec.json.encode(request)
        path = f"/v1/jobs/{self.job}/interventions"
        return decoded(self._line.ask("POST", path, body, subject=self.job), InterventionOutcome)

    def forecast(self, request: InterventionRequest) -> Forecast:
        """What the intervention would do now. Changes nothing."""
        asked = urllib.parse.quote(msgspec.json.encode(request))
        return self._read(f"forecast?request={asked}", Forecast)

    def _read(self, resource: str, kind: type[Content]) -> Content:
        return decoded(self._line.ask("GET", f"/v1/jobs/{self.job}/{resource}", subject=self.job), kind)


def gone_text(first: int, compacted_at: float | None) -> str:
    """Where a journal begins whose oldest lines were compacted."""
    at = f" at {instant(compacted_at)}" if compacted_at is not None else ""
    return f"lines before {first} were compacted{at}; incidents are kept"


def job_statuses(line: Line) -> tuple[JobStatus, ...]:
    """Every job that a watchdog knows. Raises as `Line.ask`, Damaged."""
    return decoded(line.ask("GET", "/v1/jobs"), tuple[JobStatus, ...])


def decoded(content: bytes, kind: type[Content]) -> Content:
    """An answer as what it should be. Raises Damaged."""
    try:
        return decode_json(content, kind)
    except Malformed as error:
        sentence = f"the watchdog's answer is not understood ({error}); is it of the same version as this command?"
        raise Damaged(sentence) from error
