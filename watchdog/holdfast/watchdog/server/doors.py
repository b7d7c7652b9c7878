"""What a caller must be for each path: granted a role, or a reader of what the path is about."""

from collections.abc import Awaitable, Callable

from aiohttp import web

from holdfast.api.door import Door
from holdfast.watchdog.auth import Authenticator, Caller, Role
from holdfast.watchdog.readership import Decision, Read, Readership, Right, decide
from holdfast.watchdog.server.answer import CALLER, TOKEN_HEADER, Handler, refusal, token_of
from holdfast.watchdog.server.names import check_job

Check = Callable[[web.Request, Caller], Awaitable[str | None]]
"""Why the caller is refused, None when it is not."""

READERSHIP = web.AppKey("readership", Readership)
DOOR = web.AppKey("door", Door)
FULL = "this watchdog has as many connections as its limit of open files allows: raise the limit (ulimit -Hn)"


def guarded(handler: Handler, check: Check, authenticator: Authenticator) -> Handler:
    """`handler`, for callers with a token whom `check` lets in."""

    async def ask(request: web.Request) -> web.StreamResponse:
        token = token_of(request)
        caller = await authenticator.caller(token) if token else None
        if caller is None:
            says = f"send the header 'Authorization: Bearer TOKEN' or '{TOKEN_HEADER}: TOKEN'"
            return refusal(401, f"this needs a valid token: {says}")
        door = request.app.get(DOOR)
        if door is not None and not door.admit(request.protocol):
            return refusal(503, FULL)
        why = await check(request, caller)
        if why is not None:
            return refusal(403, why)
        request[CALLER] = caller
        return await handler(request)

    return ask


def granted(needs: Role) -> Check:
    """For whoever has the role."""

    async def check(_: web.Request, caller: Caller) -> str | None:
        return None if needs in caller.roles else _lacks(needs, caller)

    return check


def reader(right: Right) -> Check:
    """For whoever may read the job that the path names; of a list, the handler leaves out what is not theirs.

    The check raises InvalidInput when the path names no job, Unavailable when Kubernetes cannot be asked.
    """

    async def check(request: web.Request, caller: Caller) -> str | None:
        decision = decide(caller, right)
        if decision is Decision.REFUSED:
            return _lacks(Role.VIEW, caller)
        if decision is Decision.ALLOWED or "name" not in request.match_info:
            return None
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        check_job(f"{namespace}/{name}")
        if await request.app[READERSHIP].may(caller, Read(right, namespace, name)):
            return None
        return (
            f"this needs the right to {right} in namespace {namespace}, or the role view, and {caller.name} has "
            f"neither: bind a ClusterRole that has it (Holdfast's chart makes one, ...-view) with 'kubectl create "
            f"rolebinding --namespace {namespace}', or grant the role view in the chart's watchdog.grants"
        )

    return check


def _lacks(needs: Role, caller: Caller) -> str:
    held = ", ".join(sorted(role.value for role in caller.roles)) or "no role"
    return f"this needs the role {needs.value}; {caller.name} has {held}"
