"""What a job's watchdog, or the store of a run that is over, knows of it: read at once, for the runbook.

What cannot be read is None with the reason: it is Unknown, and no reason to say nothing of the rest.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from holdfast.api.errors import HoldfastError, Unavailable
from holdfast.cli.localsite import LocalSource
from holdfast.cli.seen import RecordedIncidents, SeenStatus, Source
from holdfast.cli.watchdogsource import remark_end
from holdfast.console.runbook.known import Known

if TYPE_CHECKING:
    from holdfast.cli.site import JobSource

Reads = Mapping[str, Callable[[], Any]]


def known_of(source: "JobSource", window_s: float) -> Known:
    """Everything there is. Raises Unavailable and InvalidInput as `status` does: without it nothing is known.

    Of a job that is over the hours before its end are looked at.
    """
    seen = source.status()
    remark_end(seen)
    known: dict[str, Any] = {}
    unread: dict[str, str] = {}
    for name, read in _reads(source, seen).items():
        try:
            known[name] = read()
        except HoldfastError as error:
            unread[name] = str(error)
    now = seen.ended_at or seen.now or datetime.now(UTC).timestamp()
    return Known(source.job, now, window_s, seen.phase, seen.reason, unread=unread, **known)


def _reads(source: "JobSource", seen: SeenStatus) -> Reads:
    """Where each comes from: the record alone tells too little."""
    reads: dict[str, Callable[[], Any]] = {
        "incidents": lambda: _whole(source),
        "journal": lambda: tuple(source.journal(0)),
    }
    if seen.source is Source.RECORD:
        return reads | dict.fromkeys(("status", "ranks", "nodes"), _away)
    if isinstance(source, LocalSource) and seen.source is Source.STORE:
        last = source.last()
        status = replace(last.status, ended_at=seen.ended_at)
        return reads | {"status": lambda: status, "ranks": lambda: last.ranks, "nodes": lambda: last.nodes}
    client = source.client()
    live = {"status": client.status, "ranks": client.ranks, "nodes": client.nodes}
    return reads | live | {"desired": client.desired, "plan": client.plan}


def _whole(source: "JobSource") -> Any:
    found = source.incidents()
    if isinstance(found, RecordedIncidents):
        raise Unavailable("the watchdog is away, and the record has no evidence of them")
    return found


def _away() -> None:
    raise Unavailable("the watchdog is away, and the record does not keep them")
