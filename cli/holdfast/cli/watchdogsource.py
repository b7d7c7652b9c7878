"""A job read from its watchdog, and interventions handed straight to it: all there is without a cluster.

What a watchdog still says of a job that is over is said to be that, on stderr.
"""

import secrets
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final, NoReturn

from holdfast.api.errors import InvalidInput, Problem, Unavailable
from holdfast.api.event import Journaled
from holdfast.api.incident import Incident
from holdfast.api.intervention import InterventionState
from holdfast.api.status import NodeStatus, RankStatus
from holdfast.cli.logs import KeptLogs, Known, LogLine, LogRequest
from holdfast.cli.output import remark
from holdfast.cli.seen import RecordedIncidents, SeenStatus, seen
from holdfast.cli.site import Answer, Document
from holdfast.cli.view.status import ended_text
from holdfast.cli.watchdogclient import WatchdogClient

RETRY_S: Final = 0.2  # the watchdog itself waits for the answer first


class WatchdogSource:
    """Fills `site.JobSource` from a watchdog alone."""

    def __init__(self, client: WatchdogClient) -> None:
        self._client = client
        self.job = client.job

    def status(self) -> SeenStatus:
        return seen(self._client.status())

    def incidents(self) -> tuple[Incident, ...] | RecordedIncidents:
        return self._client.incidents()

    def ranks(self) -> tuple[RankStatus, ...]:
        ranks = self._client.ranks()
        self._remark_end()
        return ranks

    def nodes(self) -> tuple[NodeStatus, ...]:
        nodes = self._client.nodes()
        self._remark_end()
        return nodes

    def logs(self, request: LogRequest) -> Iterator[LogLine]:
        """Of a job whose parts somebody started by hand, only what the watchdog keeps is known here."""
        remark("a watchdog has no logs of living workers; a launcher writes them below its --log-dir or --run-dir")
        if request.rank is None:
            raise InvalidInput(Problem("--rank", None, "name the rank whose gone process is meant"))
        kept = KeptLogs(self._client, datetime.now(UTC).timestamp())
        return map(LogLine, kept.lines(request, request.rank, Known(), request.tail))

    def journal(self, after: int) -> Iterator[Journaled]:
        return self._client.journal(after)

    def client(self) -> WatchdogClient:
        return self._client

    def _remark_end(self) -> None:
        try:
            status = self._client.status()
        except (Unavailable, InvalidInput):
            return  # the answer that was asked for is there, and this is only a word beside it
        remark_end(seen(status))


def remark_end(status: SeenStatus) -> None:
    """Say on stderr that what follows is of a job that is over; nothing of one that goes on."""
    if status.ended_at is not None:
        remark(f"{status.job} {ended_text(status)}; this is what was last known")


def hand_in(client: WatchdogClient, document: Document, timeout_s: float) -> Answer:
    """Ask, and ask again with the same id while the outcome is open: it is done once however often it is asked.

    Raises InvalidSpec when the document is none, and as `WatchdogClient.intervene`.
    """
    # Every read imports this module; pydantic, which reads an Intervention, takes a while.
    from holdfast.api.interventionspec import read_intervention, request_of

    name = f"{document['metadata']['generateName']}{secrets.token_hex(4)}"
    request = request_of(read_intervention(document), name)
    deadline = time.monotonic() + timeout_s
    while True:
        outcome = client.intervene(request)
        if outcome.state is not InterventionState.PENDING or time.monotonic() + RETRY_S > deadline:
            return Answer(name, outcome.state, outcome.outcome)
        time.sleep(RETRY_S)


def no_server_check() -> NoReturn:
    """Refuse: only an API server checks without doing. Raises InvalidInput."""
    raise InvalidInput(Problem("--dry-run", "server", "write client; only a cluster can check without doing"))
