"""A job read from its watchdog, and interventions handed straight to it: all there is without a cluster.

`AddressSite` is a watchdog by its address and a token file, for those who started the parts themselves. What a
watchdog still says of a job that is over is said to be that, on stderr.
"""

import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from holdfast.api.errors import InvalidInput, Problem, Unavailable
from holdfast.api.event import Journaled
from holdfast.api.incident import Incident
from holdfast.api.intervention import InterventionState
from holdfast.api.ledger import LedgerReport
from holdfast.api.status import NodeStatus, RankStatus
from holdfast.cli.logs import KeptLogs, Known, LogLine, LogRequest
from holdfast.cli.output import remark
from holdfast.cli.seen import RecordedIncidents, SeenStatus, seen
from holdfast.cli.target import Target, only_one, split_job
from holdfast.cli.view import ended_text
from holdfast.cli.watchdogclient import DirectLine, WatchdogClient, job_statuses
from holdfast.wire.access import Access, Address, Credential, Trust

Document = dict[str, Any]
DEFAULT_NAMESPACE: Final = "default"
RETRY_S: Final = 0.2  # the watchdog itself waits for the answer first


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of an intervention so far. `name` is what it is called from now on."""

    name: str
    state: InterventionState
    outcome: str


class WatchdogSource:
    """One job, from a watchdog alone. `job` is namespace/name."""

    def __init__(self, client: WatchdogClient) -> None:
        self._client = client
        self.job = client.job

    def status(self) -> SeenStatus:
        """Where it is; from the record where there is one and the watchdog is away."""
        return seen(self._client.status())

    def incidents(self) -> tuple[Incident, ...] | RecordedIncidents:
        """Oldest first; what the record keeps of them where there is one and the watchdog is away."""
        return self._client.incidents()

    def ranks(self) -> tuple[RankStatus, ...]:
        """Every rank; of a job that is over, as it was last seen, which stderr says."""
        ranks = self._client.ranks()
        self._remark_end()
        return ranks

    def nodes(self) -> tuple[NodeStatus, ...]:
        """Every node; of a job that is over, as it was last seen, which stderr says."""
        nodes = self._client.nodes()
        self._remark_end()
        return nodes

    def ledger(self) -> LedgerReport:
        """Where every GPU-second went."""
        return self._client.ledger()

    def logs(self, request: LogRequest) -> Iterator[LogLine]:
        """Of a job whose parts somebody started by hand, only what the watchdog keeps is known here."""
        remark("a watchdog has no logs of living workers; a launcher writes them below its --log-dir or --run-dir")
        if request.rank is None:
            raise InvalidInput(Problem("--rank", None, "name the rank whose gone process is meant"))
        kept = KeptLogs(self._client, datetime.now(UTC).timestamp())
        return map(LogLine, kept.lines(request, request.rank, Known(), request.tail))

    def journal(self, after: int) -> Iterator[Journaled]:
        """Line by line behind the line `after`."""
        return self._client.journal(after)

    def series(self) -> bytes:
        """The job's figures over time, as a console answers with them (`figures.read_figures`)."""
        raise Unavailable("a watchdog keeps no figures over time, and no console is known here that does")

    def client(self) -> WatchdogClient:
        """For what only the watchdog knows."""
        return self._client

    def _remark_end(self) -> None:
        try:
            status = self._client.status()
        except (Unavailable, InvalidInput):
            return  # the answer that was asked for is there, and this is only a word beside it
        remark_end(seen(status))


class WatchdogSite(ABC):
    """Jobs where there is no cluster: interventions are handed straight to the job's watchdog."""

    @abstractmethod
    def client(self) -> WatchdogClient:
        """Of the job that the target names, or the only one. Raises InvalidInput naming those to choose from."""

    def check(self, document: Document) -> Document:
        """Have the server check an Intervention and change nothing: there is none that could."""
        raise InvalidInput(Problem("--dry-run", "server", "write client; only a cluster can check without doing"))

    def hand_in(self, document: Document, timeout_s: float) -> Answer:
        """Asks again with the same id while the outcome is open: it is done once however often it is asked.

        Raises InvalidSpec when the document is none, and as `WatchdogClient.intervene`.
        """
        # Every read imports this module; pydantic, which reads an Intervention, takes a while.
        from holdfast.api.interventionspec import read_intervention, request_of

        name = f"{document['metadata']['generateName']}{secrets.token_hex(4)}"
        request, client = request_of(read_intervention(document), name), self.client()
        deadline = time.monotonic() + timeout_s
        while True:
            outcome = client.intervene(request)
            if outcome.state is not InterventionState.PENDING or time.monotonic() + RETRY_S > deadline:
                return Answer(name, outcome.state, outcome.outcome)
            time.sleep(RETRY_S)


class AddressSite(WatchdogSite):
    """Raises InvalidInput when the address is none, Unavailable when a file cannot be read."""

    def __init__(self, target: Target) -> None:
        assert target.watchdog is not None
        self._target = target
        self._address = target.watchdog
        address = Address.parse(
            target.watchdog, given_by="--watchdog", fix="write HOST:PORT, such as 127.0.0.1:7077"
        )
        if target.token_file is None:
            fix = "give the file with the token that the watchdog takes"
            raise InvalidInput(Problem("--token-file", None, fix))
        trust = Trust(target.ca_file)
        trust.pem()  # what is no certificate is somebody's mistake, and now is when it is made
        access = Access(address, Credential(file=target.token_file), trust)
        self._line = DirectLine(access, token_of=str(target.token_file))

    def statuses(self) -> tuple[SeenStatus, ...]:
        if self._target.job is not None:
            return (self.source().status(),)
        return tuple(seen(status) for status in job_statuses(self._line))

    def client(self) -> WatchdogClient:
        return self.source().client()

    def source(self) -> WatchdogSource:
        named = self._target.job
        if named is None:
            named = only_one(tuple(each.job for each in job_statuses(self._line)), self._address)
        return WatchdogSource(WatchdogClient(self._line, "/".join(split_job(named, DEFAULT_NAMESPACE))))


def remark_end(status: SeenStatus) -> None:
    """Say on stderr that what follows is of a job that is over; nothing of one that goes on."""
    if status.ended_at is not None:
        remark(f"{status.job} {ended_text(status)}; this is what was last known")
