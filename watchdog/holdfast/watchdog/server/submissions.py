"""What people send: jobs and interventions."""

from typing import TypeVar

from aiohttp import web

from holdfast.api.decoding import decode_json
from holdfast.api.errors import InvalidInput, InvalidSpec, Malformed, Problem
from holdfast.api.event import JobSubmitted
from holdfast.api.intervention import InterventionRequest, InterventionState
from holdfast.api.policy import Policy
from holdfast.watchdog.server.answer import answer
from holdfast.watchdog.server.host import JobHost
from holdfast.watchdog.server.reads import hosted, status
from holdfast.watchdog.server.watchdog import WATCHDOG

BODY_BYTES_MAX = 256 * 1024
ID_LENGTH_MAX = 253

T = TypeVar("T")


async def submit(request: web.Request) -> web.Response:
    """Take a job's policy; the same again changes nothing. Answers with the job's status."""
    policy = _decoded(await request.read(), Policy)
    _check(policy)
    policy = request.app[WATCHDOG].cluster.applied_to(policy)
    host = request.app[WATCHDOG].host(policy.job)
    was_submitted = host.is_submitted
    if policy != host.job.state.policy:
        host.demand(JobSubmitted(policy))
    if host.is_submitted and not was_submitted:
        host.dismiss_launchers("the job is a TrainingJob's now")
    return answer(status(host))


async def forget(request: web.Request) -> web.Response:
    """Drop a job that is gone for good, with its journal and incidents. The same again changes nothing."""
    request.app[WATCHDOG].forget(f"{request.match_info['namespace']}/{request.match_info['name']}")
    return web.Response(status=204)


async def intervene(request: web.Request) -> web.Response:
    """Take an intervention and answer with its outcome: 200 when it is known, 202 while it is pending."""
    host = hosted(request)
    outcome = await host.intervene(_requested(await request.read(), host))
    return answer(outcome, status=202 if outcome.state is InterventionState.PENDING else 200)


def _requested(body: bytes, host: JobHost) -> InterventionRequest:
    """The intervention in `body`. Raises InvalidInput when it is none of this job."""
    asked = _decoded(body, InterventionRequest)
    if asked.job != host.job.name:
        raise InvalidInput(Problem("job", asked.job[:64], f"name the job of the path, {host.job.name}"))
    if not 1 <= len(asked.id) <= ID_LENGTH_MAX:
        raise InvalidInput(Problem("id", asked.id[:64], f"give 1 to {ID_LENGTH_MAX} characters"))
    return asked


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
