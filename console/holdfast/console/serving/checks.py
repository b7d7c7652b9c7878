"""The runbook of a symptom for a reader: read from the watchdog by the reader's own token, then examined.

The feed tells no journal, so that each answer asks for what it needs; a few at a time, as a journal may be long.
"""

import asyncio
import urllib.parse
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import msgspec

from holdfast.api.decoding import decode_json
from holdfast.api.errors import HoldfastError, InvalidInput, Malformed, Problem, Unavailable
from holdfast.api.event import Journaled
from holdfast.api.incident import Incident
from holdfast.api.plan import Plan
from holdfast.api.round import Desired
from holdfast.api.status import JobStatus, NodeStatus, RankStatus
from holdfast.console.runbook.check import Check
from holdfast.console.runbook.command import in_cluster
from holdfast.console.runbook.examine import examine
from holdfast.console.runbook.known import Known
from holdfast.console.runbook.symptom import Symptom
from holdfast.wire.answer import explanation
from holdfast.wire.http import WatchdogHttp

AT_ONCE: Final = 4
PAGES_MAX: Final = 400
"""Of the journal, 500 lines each: one that is longer is Unknown here, as the answer says."""
_READS: Final[dict[str, Any]] = {
    "status": JobStatus,
    "ranks": tuple[RankStatus, ...],
    "nodes": tuple[NodeStatus, ...],
    "incidents?limit=1000": tuple[Incident, ...],
    "round": Desired | None,
    "plan": Plan | None,
}
_FIELDS: Final = {"incidents?limit=1000": "incidents", "round": "desired"}


class _Page(msgspec.Struct, frozen=True):
    lines: tuple[Journaled, ...]
    next_after: int | None


class Runbook:
    """Answers for every job of the watchdog that `http` reaches."""

    def __init__(self, http: WatchdogHttp, further: Sequence[Check] = ()) -> None:
        """`further` are checks of this installation, run beside the built-in ones."""
        self._http = http
        self._further = further
        self._room = asyncio.Semaphore(AT_ONCE)

    async def of(self, job: str, symptom: str, token: str) -> dict[str, Any]:
        """The answers, the likeliest suspect first. Raises InvalidInput for a symptom that is none, Unavailable
        when not even the job's status can be read.
        """
        if symptom not in list(Symptom):
            raise InvalidInput(Problem("symptom", symptom[:64], f"write one of {', '.join(Symptom)}"))
        async with self._room:
            known = await self._known(job, token)
            answers = await asyncio.to_thread(examine, Symptom(symptom), known, self._further)
        typed = in_cluster(*job.split("/", 1))
        return {"symptom": symptom, "checks": [each.shown(typed.line(each.next)) for each in answers]}

    async def _known(self, job: str, token: str) -> Known:
        path = f"/v1/jobs/{'/'.join(urllib.parse.quote(each, safe='') for each in job.split('/', 1))}"
        told: dict[str, Any] = {}
        unread: dict[str, str] = {}
        for resource, kind in _READS.items():
            name = _FIELDS.get(resource, resource)
            try:
                told[name] = await self._read(f"{path}/{resource}", kind, token)
            except HoldfastError as error:
                unread[name] = str(error)
        status: JobStatus | None = told.get("status")
        if status is None:
            raise Unavailable(f"the status of {job} cannot be read: {unread['status']}")
        try:
            told["journal"] = tuple([line async for line in self._journal(path, token)])
        except HoldfastError as error:
            unread["journal"] = str(error)
        if "incidents" in told:
            told["incidents"] = told["incidents"][::-1]  # the watchdog tells the newest first
        return Known(
            job, status.ended_at or status.now, phase=status.phase, reason=status.reason, unread=unread, **told
        )

    async def _journal(self, path: str, token: str) -> AsyncIterator[Journaled]:
        after: int | None = 0
        for _ in range(PAGES_MAX):
            page: _Page = await self._read(f"{path}/journal?after={after}", _Page, token)
            for line in page.lines:
                yield line
            after = page.next_after
            if after is None:
                return
        raise Unavailable(f"the journal is longer than {PAGES_MAX} pages; ask `kubectl holdfast runbook`")

    async def _read(self, path: str, kind: Any, token: str) -> Any:
        status, content = await self._http.answered("GET", path, token=token)
        if status != 200:
            raise Unavailable(explanation(content) or f"the watchdog answers with {status}")
        try:
            return decode_json(content, kind)
        except Malformed as error:
            raise Unavailable(f"the watchdog's answer is not understood: {error}") from error
