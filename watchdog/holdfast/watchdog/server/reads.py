"""What people and programs read of a job, as JSON."""

from typing import Any, Final

import msgspec
from aiohttp import web
from msgspec.structs import replace

from holdfast.api.errors import InvalidInput, Problem
from holdfast.api.event import Journaled
from holdfast.api.incident import Incident
from holdfast.api.policy import Policy
from holdfast.api.status import Hearing, JobStatus, NodeStatus
from holdfast.api.telemetry import GpuHealth, GpuSample
from holdfast.watchdog.brain.reputation import namespace_of
from holdfast.watchdog.brain.status import status_of, with_trouble
from holdfast.watchdog.server.answer import CALLER, READERSHIP, NotFound, answer
from holdfast.watchdog.server.host import JobHost
from holdfast.watchdog.server.watchdog import WATCHDOG
from holdfast.watchdog.store.store import START

INCIDENTS_MAX = 1000
JOURNAL_PAGE_LINES = 500
REPORTS_MISSED: Final = 3  # in a row; then an agent is silent


class JournalPage(msgspec.Struct, frozen=True):
    """Some lines, and the `after` that gives the next ones; None when these were the last.

    The journal begins at line `first`: those before were compacted at `compacted_at` (watchdog clock, seconds).
    """

    lines: tuple[Journaled, ...]
    next_after: int | None
    first: int = START + 1
    compacted_at: float | None = None


def hosted(request: web.Request) -> JobHost:
    """The job that the path names. Raises NotFound."""
    name = f"{request.match_info['namespace']}/{request.match_info['name']}"
    host = request.app[WATCHDOG].known(name)
    if host is None:
        raise NotFound(f"there is no job {name}")
    return host


async def jobs(request: web.Request) -> web.Response:
    """The status of every job whose namespace's jobs the caller may list."""
    watchdog = request.app[WATCHDOG]
    there = [namespace_of(host.job.name) for host in watchdog.hosts()]
    listed = await request.app[READERSHIP].listed(request[CALLER], there)
    return answer([status(host) for host in watchdog.hosts() if namespace_of(host.job.name) in listed])


async def job_status(request: web.Request) -> web.Response:
    return answer(status(hosted(request)))


async def ranks(request: web.Request) -> web.Response:
    """Those of the round that runs; of a job that has ended, as they were last seen."""
    host = hosted(request)
    if host.job.state.ended_at is not None:
        return answer(host.last_seen().ranks)
    progress = host.job.progress
    return answer(progress.ranks(host.clock.now()) if progress is not None else ())


async def incidents(request: web.Request) -> web.Response:
    """Newest first; `limit` bounds how many."""
    host = hosted(request)
    limit = min(_whole(request, "limit", 100), INCIDENTS_MAX)
    return answer(list(_incidents(host).values())[::-1][:limit])


async def incident(request: web.Request) -> web.Response:
    host = hosted(request)
    found = _incidents(host).get(request.match_info["id"])
    if found is None:
        raise NotFound(f"{host.job.name} has no incident {request.match_info['id']}")
    return answer(found)


async def plan(request: web.Request) -> web.Response:
    return answer(hosted(request).job.state.plan)


async def desired_round(request: web.Request) -> web.Response:
    """What the launchers are shown now: a round, or why there is none."""
    return answer(hosted(request).job.state.desired)


async def nodes(request: web.Request) -> web.Response:
    host = hosted(request)
    now = host.clock.now()
    fleet = request.app[WATCHDOG].fleet
    told = (replace(each, known=fleet.told_of(each.node, now, host.job.name)) for each in host.last_seen().nodes)
    return answer([as_of_now(each, host.job.state.policy) for each in told])


async def journal(request: web.Request) -> web.Response:
    """One page of the journal behind the line `after`, or from where it begins."""
    host, store = hosted(request), request.app[WATCHDOG].store
    extent = store.extent(host.job.name)
    lines: list[Journaled] = []
    for line in store.tail(host.job.name, max(_whole(request, "after", 0), extent.first - 1)):
        lines.append(line)
        if len(lines) == JOURNAL_PAGE_LINES:
            break
    more = bool(lines) and lines[-1].offset < host.job.offset
    next_after = lines[-1].offset if more else None
    return answer(JournalPage(tuple(lines), next_after, extent.first, extent.compacted_at))


async def logs(request: web.Request) -> web.Response:
    """The end of what worker processes wrote that ended, or whose launcher left: newest first, 64 at most.

    `rank` or `node` says of which.
    """
    host = hosted(request)
    if "rank" in request.query:
        return answer(host.outputs.of_rank(host.job.name, _whole(request, "rank", 0)))
    if (node := request.query.get("node")) is None:
        raise InvalidInput(Problem("rank", None, "name a rank, or a node"))
    return answer(host.outputs.on_node(host.job.name, node))


def status(host: JobHost) -> JobStatus:
    """The job as it is now."""
    return with_trouble(status_of(host.job.shown, host.job.progress, host.clock.now()), host.job.trouble)


def as_of_now(node: NodeStatus, policy: Policy | None) -> NodeStatus:
    """The node, with its GPUs Unknown when its agent has been silent; never while no policy says how often.

    Of a job that has ended it stays what was said last, and says that it is.
    """
    if policy is None or node.hearing is Hearing.ENDED:
        return node
    silent_after_s = max(policy.lost_after_s, REPORTS_MISSED * policy.heartbeat_interval_s)
    if node.heard_age_s <= silent_after_s:
        return node
    gpus = tuple(GpuSample(gpu.uuid, gpu.index, GpuHealth.UNKNOWN) for gpu in node.gpus)
    return replace(node, gpus=gpus, hearing=Hearing.SILENT)


def _incidents(host: JobHost) -> dict[str, Incident]:
    """By id, oldest first. The state's are the newest versions; older ones are only in the archive."""
    state = host.job.state
    known = {each.id: each for each in state.incidents}
    if state.incident_count > len(known):
        filed = host.job.filed_incidents(limit=INCIDENTS_MAX)
        known = {each.id: each for each in filed} | known
    return known


def _whole(request: web.Request, name: str, default: int) -> int:
    given: Any = request.query.get(name, default)
    try:
        number = int(given)
    except ValueError:
        number = -1
    if not 0 <= number < 2**63:
        raise InvalidInput(Problem(name, str(given)[:32], "give a whole number, zero or greater"))
    return number
