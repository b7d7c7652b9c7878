"""What people and programs read of jobs, as JSON, and what they send: jobs and interventions."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
from aiohttp import web
from msgspec.structs import replace

from holdfast.api.decoding import decode_json
from holdfast.api.errors import InvalidInput, InvalidSpec, Malformed, Problem
from holdfast.api.event import JobSubmitted, Journaled
from holdfast.api.feed import Whoami
from holdfast.api.incident import Incident
from holdfast.api.intervention import InterventionRequest, InterventionState
from holdfast.api.policy import Policy
from holdfast.api.status import Hearing, JobStatus, NodeStatus, RankStatus
from holdfast.api.telemetry import GpuHealth, GpuSample
from holdfast.watchdog import brain
from holdfast.watchdog.access.auth import Role
from holdfast.watchdog.access.readership import GET_JOB, GET_LOG, Read
from holdfast.watchdog.brain.reputation import namespace_of
from holdfast.watchdog.brain.requests import is_another
from holdfast.watchdog.brain.status import status_of, with_trouble
from holdfast.watchdog.journal.replay import oldest
from holdfast.watchdog.server.answer import CALLER, READERSHIP, Handler, NotFound, answer
from holdfast.watchdog.server.host import JobHost
from holdfast.watchdog.server.identity import check_job
from holdfast.watchdog.server.watchdog import WATCHDOG
from holdfast.watchdog.standstill import standstill
from holdfast.watchdog.store.store import START

logger = logging.getLogger(__name__)

INCIDENTS_MAX = 1000
JOURNAL_PAGE_LINES = 500
REPORTS_MISSED: Final = 3  # in a row; then an agent is silent
BODY_BYTES_MAX = 256 * 1024
ID_LENGTH_MAX = 253

T = TypeVar("T")


class JournalPage(msgspec.Struct, frozen=True):
    """Some lines, and the `after` that gives the next ones; None when these were the last.

    The journal begins at line `first`: those before were compacted at `compacted_at` (watchdog clock, seconds).
    """

    lines: tuple[Journaled, ...]
    next_after: int | None
    first: int = START + 1
    compacted_at: float | None = None


def named(request: web.Request) -> str:
    """The name of the job in the path."""
    return f"{request.match_info['namespace']}/{request.match_info['name']}"


def hosted(request: web.Request) -> JobHost:
    """The job that the path names. Raises NotFound."""
    name = named(request)
    host = request.app[WATCHDOG].known(name)
    if host is None:
        raise NotFound(f"there is no job {name}")
    return host


async def list_jobs(request: web.Request) -> web.Response:
    """The status of every job whose namespace's jobs the caller may list."""
    watchdog = request.app[WATCHDOG]
    there = [namespace_of(host.job.name) for host in watchdog.hosts()]
    listed = await request.app[READERSHIP].listed(request[CALLER], there)
    return answer([status(host) for host in watchdog.hosts() if namespace_of(host.job.name) in listed])


async def fleet(request: web.Request) -> web.Response:
    """What all jobs together know, as of now."""
    return answer(request.app[WATCHDOG].fleet_report())


def shows(read: Callable[[JobHost], object]) -> Handler:
    """A handler that answers with what `read` finds of the job that the path names."""

    async def handle(request: web.Request) -> web.Response:
        return answer(read(hosted(request)))

    return handle


def status(host: JobHost) -> JobStatus:
    """The job as it is now."""
    return with_trouble(status_of(host.job.shown, host.job.progress, host.clock.now()), host.job.trouble)


async def ledger(request: web.Request) -> web.Response:
    """Where every GPU-second of the job went; of one that is gone, as it was then."""
    watchdog, name = request.app[WATCHDOG], named(request)
    host = watchdog.known(name)
    found = host.ledger() if host is not None else watchdog.past_ledgers.of(name)
    if found is None:
        raise NotFound(f"there is no job {name}")
    return answer(found)


def ranks(host: JobHost) -> tuple[RankStatus, ...]:
    """Those of the round that runs; of a job that has ended, as they were last seen."""
    if host.job.state.ended_at is not None:
        return host.last_seen().ranks
    progress = host.job.progress
    return progress.ranks(host.clock.now()) if progress is not None else ()


def incidents_of(host: JobHost) -> dict[str, Incident]:
    """By id, oldest first. The state's are the newest versions; older ones are only in the archive."""
    state = host.job.state
    known = {each.id: each for each in state.incidents}
    if state.incident_count > len(known):
        filed = host.job.filed_incidents(limit=INCIDENTS_MAX)
        known = {each.id: each for each in filed} | known
    return known


async def incidents(request: web.Request) -> web.Response:
    """Newest first; `limit` bounds how many."""
    host = hosted(request)
    limit = min(whole(request, "limit", 100), INCIDENTS_MAX)
    return answer(list(incidents_of(host).values())[::-1][:limit])


async def incident(request: web.Request) -> web.Response:
    host = hosted(request)
    found = incidents_of(host).get(request.match_info["id"])
    if found is None:
        raise NotFound(f"{host.job.name} has no incident {request.match_info['id']}")
    return answer(found)


async def nodes(request: web.Request) -> web.Response:
    host = hosted(request)
    now = host.clock.now()
    fleet = request.app[WATCHDOG].fleet
    told = (replace(each, known=fleet.told_of(each.node, now, host.job.name)) for each in host.last_seen().nodes)
    return answer([as_of_now(each, host.job.state.policy) for each in told])


async def stacks(request: web.Request) -> web.Response:
    """Where the ranks stand now. They are signalled for it, once a second at most, and train on."""
    host = hosted(request)
    round_ = host.job.state.round
    told = () if round_ is None else await asyncio.shield(host.stacks.ask(host.launchers, round_))
    return answer(standstill(told, 0 if round_ is None else round_.world_size))


async def journal(request: web.Request) -> web.Response:
    """One page of the journal behind the line `after`, or from where it begins."""
    host, store = hosted(request), request.app[WATCHDOG].store
    extent = store.extent(host.job.name)
    lines: list[Journaled] = []
    for line in store.tail(host.job.name, max(whole(request, "after", 0), extent.first - 1)):
        lines.append(line)
        if len(lines) == JOURNAL_PAGE_LINES:
            break
    more = bool(lines) and lines[-1].offset < host.job.offset
    next_after = lines[-1].offset if more else None
    return answer(JournalPage(tuple(lines), next_after, extent.first, extent.compacted_at))


async def origin(request: web.Request) -> web.Response:
    """The state that the kept journal begins behind: from it on its lines lead to what is shown."""
    host, store = hosted(request), request.app[WATCHDOG].store
    return answer(oldest(store, host.job.name, brain=brain).snapshot())


async def logs(request: web.Request) -> web.Response:
    """The end of what worker processes wrote that ended, or whose launcher left: newest first, 64 at most.

    `rank` or `node` says of which.
    """
    host = hosted(request)
    if "rank" in request.query:
        return answer(host.outputs.of_rank(host.job.name, whole(request, "rank", 0)))
    if (node := request.query.get("node")) is None:
        raise InvalidInput(Problem("rank", None, "name a rank, or a node"))
    return answer(host.outputs.on_node(host.job.name, node))


def as_of_now(node: NodeStatus, policy: Policy | None) -> NodeStatus:
    """The node, with its GPUs Unknown when its agent has been silent; never while no policy says how often.

    Of a job that has ended it stays what was said last, and says that it is.
    """
    if policy is None or node.hearing is Hearing.ENDED:
        return node
    if node.heard_age_s <= silent_after_s(policy):
        return node
    gpus = tuple(GpuSample(gpu.uuid, gpu.index, GpuHealth.UNKNOWN) for gpu in node.gpus)
    return replace(node, gpus=gpus, hearing=Hearing.SILENT)


def silent_after_s(policy: Policy) -> float:
    """After how many seconds without a report nothing is known of a node's GPUs."""
    return max(policy.lost_after_s, REPORTS_MISSED * policy.heartbeat_interval_s)


def whole(request: web.Request, name: str, default: int) -> int:
    """A parameter of the query. Raises InvalidInput."""
    given: Any = request.query.get(name, default)
    try:
        number = int(given)
    except ValueError:
        number = -1
    if not 0 <= number < 2**63:
        raise InvalidInput(Problem(name, str(given)[:32], "give a whole number, zero or greater"))
    return number


async def profiled(request: web.Request) -> web.Response:
    """The newest profile that was asked for."""
    host = hosted(request)
    found = host.profiles.status(host.job.state.round)
    if found is None:
        raise NotFound(f"nobody has asked for a profile of {host.job.name}")
    return answer(found)


async def whoami(request: web.Request) -> web.Response:
    """Who the caller is, and what that allows: of the job in the query's `job`, or of all."""
    caller, readership = request[CALLER], request.app[READERSHIP]
    job = request.query.get("job", "")
    may = []
    if job:
        check_job(job)
        namespace, _, name = job.partition("/")
        reads = ((GET_JOB, "view"), (GET_LOG, "logs"))
        may = [what for right, what in reads if await readership.may(caller, Read(right, namespace, name))]
    elif Role.VIEW in caller.roles:
        may = ["view", "logs"]
    if Role.OPERATE in caller.roles:
        may.append("operate")
    there = [namespace_of(host.job.name) for host in request.app[WATCHDOG].hosts()]
    listed = await readership.listed(caller, there)
    return answer(Whoami(caller.name, tuple(may), tuple(sorted(listed))))


async def submit(request: web.Request) -> web.Response:
    """Take a job's policy; the same again changes nothing. Answers with the job's status."""
    policy = _decoded(await request.read(), Policy)
    _check(policy)
    policy = request.app[WATCHDOG].cluster.applied_to(policy)
    host = request.app[WATCHDOG].host(policy.job)
    was_submitted = host.is_submitted
    if policy != host.job.state.policy:
        if is_another(host.job.state, policy):
            request.app[WATCHDOG].past_ledgers.keep(host.ledger())
        host.demand(JobSubmitted(policy))
    if host.is_submitted and not was_submitted:
        host.dismiss_launchers("the job is a TrainingJob's now")
    return answer(status(host))


async def forget(request: web.Request) -> web.Response:
    """Drop a job that is gone for good, with its journal and incidents, but for its ledger. The same again changes
    nothing.
    """
    request.app[WATCHDOG].forget(named(request))
    return web.Response(status=204)


def _requested(body: bytes, host: JobHost) -> InterventionRequest:
    """The intervention in `body`. Raises InvalidInput when it is none of this job."""
    asked = _decoded(body, InterventionRequest)
    if asked.job != host.job.name:
        raise InvalidInput(Problem("job", asked.job[:64], f"name the job of the path, {host.job.name}"))
    if not 1 <= len(asked.id) <= ID_LENGTH_MAX:
        raise InvalidInput(Problem("id", asked.id[:64], f"give 1 to {ID_LENGTH_MAX} characters"))
    return asked


async def intervene(request: web.Request) -> web.Response:
    """Take an intervention and answer with its outcome: 200 when it is known, 202 while it is pending."""
    host = hosted(request)
    outcome = await host.interventions.ask(_requested(await request.read(), host))
    return answer(outcome, status=202 if outcome.state is InterventionState.PENDING else 200)


async def foretell(request: web.Request) -> web.Response:
    """What the intervention in the query's `request`, as JSON, would do now. Whoever may read may ask."""
    host = hosted(request)
    asked = _requested(request.query.get("request", "").encode(), host)
    return answer(host.job.forecast(asked, host.clock.now()))


def _decoded(body: bytes, kind: type[T]) -> T:
    try:
        return decode_json(body, kind)
    except Malformed as error:
        raise InvalidInput(Problem("body", f"{len(body)} bytes", f"send a {kind.__name__}: {error}")) from error


def _check(policy: Policy) -> None:
    """What no brain could work with. Raises InvalidSpec with every problem."""
    problems = [
        Problem(field, getattr(policy, field), fix)
        for field, accepted, fix in (
            ("nodes_min", policy.nodes_min >= 1, "give at least 1"),
            ("nodes_max", policy.nodes_max >= policy.nodes_min, "give at least nodes_min"),
            ("spares", policy.spares >= 0, "give 0 or more"),
            ("processes_per_node", policy.processes_per_node >= 1, "give at least 1"),
            ("model_ranks", policy.model_ranks >= 1, "give at least 1"),
            ("heartbeat_interval_s", policy.heartbeat_interval_s > 0, "give seconds above 0"),
            ("lost_after_s", policy.lost_after_s > 0, "give seconds above 0"),
        )
        if not accepted
    ]
    if problems:
        raise InvalidSpec(*problems)
