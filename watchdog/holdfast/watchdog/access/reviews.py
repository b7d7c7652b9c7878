"""Whose a token is and who may read a TrainingJob, by asking the Kubernetes API server; remembered for a while.

Sources: https://kubernetes.io/docs/reference/kubernetes-api/authentication-resources/token-review-v1/
https://kubernetes.io/docs/reference/kubernetes-api/authorization-resources/subject-access-review-v1/
"""

import asyncio
import base64
import binascii
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.api.decoding import decode_json
from holdfast.api.errors import Malformed, Unavailable
from holdfast.watchdog.access.auth import Caller, Identity
from holdfast.watchdog.access.grants import GrantsFile
from holdfast.watchdog.access.readership import GROUP, RESOURCE, Read
from holdfast.watchdog.access.verdicts import Trust, Verdict, Verdicts
from holdfast.watchdog.settings import KubernetesAuth
from holdfast.wire.kube.client import KubeClient, Request, ServiceAccount

logger = logging.getLogger(__name__)

Review = TypeVar("Review")

# A review is a look into the API server's cache; one that restarts refuses connections at once.
REVIEW_S = 3.0
# After a leader's death every launcher comes at once; the API server has others to serve.
REVIEWS_AT_ONCE = 32
# While it is away, not every caller waits for it anew.
PAUSE_S = 1.0


@dataclass(frozen=True)
class Kind:
    """A kind of review. `question` is what it answers, in words."""

    api: str  # group/version
    name: str
    question: str

    @property
    def resource(self) -> str:
        return f"{self.name.lower()}s"

    @property
    def path(self) -> str:
        return f"/apis/{self.api}/{self.resource}"


class Reviews:
    """Reviews of one kind. `now` reads like the wall clock, and never goes back.

    Raises Unavailable when made without a certificate to trust.
    """

    def __init__(self, kind: Kind, settings: KubernetesAuth, *, now: Callable[[], float]) -> None:
        self._kind = kind
        self._now = now
        login = ServiceAccount(settings.api_server, settings.account)
        self._api = KubeClient(login, connections=REVIEWS_AT_ONCE)
        self._verdicts = Verdicts()
        self._asked: dict[str, asyncio.Task[Verdict]] = {}
        self._paused_until = 0.0
        self._trouble: str | None = None

    async def verdict(self, key: str, review: Callable[[], Awaitable[Verdict]]) -> Verdict:
        """What is remembered for `key`, else what `review` says.

        Who was accepted within the last minutes stays so while the API server is away. Raises Unavailable.
        """
        now = self._now()
        known = self._verdicts.get(key, now, Trust.FRESH)
        if known is None:
            try:
                known = await self._shared(key, review)
            except Unavailable:
                known = self._verdicts.get(key, now, Trust.LAST_RESORT)
                if known is None:
                    raise
        return known

    async def ask(self, spec: Mapping[str, Any], of: type[Review]) -> Review:
        """The review of `spec`, decoded as `of`. Raises Unavailable."""
        if self._trouble is not None and self._now() < self._paused_until:
            raise Unavailable(self._trouble)
        try:
            review = await self._post(spec, of)
        except Unavailable as error:
            if self._trouble is None:
                logger.error("reviews cannot be had kind=%s reason=%s", self._kind.name, error)
            self._trouble, self._paused_until = str(error), self._now() + PAUSE_S
            raise
        if self._trouble is not None:
            logger.info("reviews are had again kind=%s", self._kind.name)
        self._trouble = None
        return review

    async def close(self) -> None:
        """Release the connections. No call follows."""
        await self._api.close()

    async def _shared(self, key: str, review: Callable[[], Awaitable[Verdict]]) -> Verdict:
        """Ask once for all who ask the same meanwhile."""
        task = self._asked.get(key)
        if task is None:
            task = asyncio.create_task(self._remembered(key, review))
            self._asked[key] = task
            task.add_done_callback(lambda done: self._answered(key, done))
        return await asyncio.shield(task)

    async def _remembered(self, key: str, review: Callable[[], Awaitable[Verdict]]) -> Verdict:
        verdict = await review()
        self._verdicts.put(key, verdict)
        return verdict

    def _answered(self, key: str, task: "asyncio.Task[Verdict]") -> None:
        del self._asked[key]
        if not task.cancelled():
            task.exception()  # seen, also when everybody who asked has gone meanwhile

    async def _post(self, spec: Mapping[str, Any], of: type[Review]) -> Review:
        kind = self._kind
        review = {"apiVersion": kind.api, "kind": kind.name, "spec": spec}
        request = Request("POST", kind.path, body=msgspec.json.encode(review), timeout_s=REVIEW_S)
        try:
            reply = await self._api.send(request)
            if reply.status in (200, 201):
                return decode_json(reply.content, of)
        except (Unavailable, Malformed) as error:
            raise Unavailable(f"the API server cannot be asked {kind.question}: {error}") from error
        why = {
            401: ": our own account's token is not accepted",
            403: f": our own account may not create {kind.resource} (bind it to system:auth-delegator)",
        }.get(reply.status, "")
        raise Unavailable(f"the API server answers {reply.status} to a {kind.name}{why}")


# Whose a token is.

# Which pod a bound token is of, and where that runs; an API server before 1.30 says no node.
# Source: https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/#schema-for-service-account-private-claims
POD_NAME = "authentication.kubernetes.io/pod-name"
NODE_NAME = "authentication.kubernetes.io/node-name"
TOKEN = Kind("authentication.k8s.io/v1", "TokenReview", "whose a token is")


class _User(msgspec.Struct):
    username: str = ""
    uid: str = ""
    groups: list[str] = []
    extra: dict[str, list[str]] = {}

    def identity(self) -> Identity:
        extra = tuple((key, tuple(values)) for key, values in sorted(self.extra.items()))
        return Identity(self.uid, tuple(self.groups), extra)


class _TokenStatus(msgspec.Struct):
    authenticated: bool = False
    user: _User = msgspec.field(default_factory=_User)
    audiences: list[str] = []
    error: str = ""


class _TokenReview(msgspec.Struct):
    status: _TokenStatus


class TokenReviewer:
    """Fills the `Authenticator` port. `now` reads like the wall clock, and never goes back.

    Raises Unavailable when made without a certificate to trust, InvalidInput for grants that cannot be read.
    """

    def __init__(self, settings: KubernetesAuth, *, now: Callable[[], float]) -> None:
        self._audience = settings.audience
        self._now = now
        self._grants = GrantsFile(settings.grants)
        self._reviews = Reviews(TOKEN, settings, now=now)

    async def caller(self, token: str) -> Caller | None:
        """A token accepted within the last minutes is accepted on while the API server is away."""
        return (await self._reviews.verdict(token, lambda: self._review(token))).caller

    async def close(self) -> None:
        await self._reviews.close()

    async def _review(self, token: str) -> Verdict:
        spec = {"token": token.encode("utf-8", "replace").decode(), "audiences": [self._audience]}
        status = (await self._reviews.ask(spec, _TokenReview)).status
        caller = None
        # An API server that knows nothing of audiences says none; then the token was made for anybody.
        if status.authenticated and self._audience in status.audiences:
            user = status.user
            pod, node = (next(iter(user.extra.get(name, ())), None) for name in (POD_NAME, NODE_NAME))
            granted = self._grants.newest().caller(user.username, user.groups, pod)
            caller = replace(granted, identity=user.identity(), node=node)
        return Verdict(caller, self._now(), expiry(token))


def expiry(token: str) -> float:
    """When a token says that it ends, seconds since 1970; infinite when it does not say.

    Read without checking the signature: the API server has, and this can only make us trust it for less long.
    Source: RFC 7519, section 4.1.4
    """
    parts = token.split(".")
    if len(parts) != 3:
        return float("inf")
    try:
        padded = parts[1] + "=" * (-len(parts[1]) % 4)
        ends = decode_json(base64.urlsafe_b64decode(padded), dict[str, object]).get("exp")
        return float(ends) if isinstance(ends, int | float) else float("inf")
    except (binascii.Error, ValueError, OverflowError, Malformed):
        return float("inf")


# What a caller may read of TrainingJobs.

ACCESS = Kind("authorization.k8s.io/v1", "SubjectAccessReview", "who may read a job")


class _AccessStatus(msgspec.Struct):
    allowed: bool = False


class _AccessReview(msgspec.Struct):
    status: _AccessStatus


class AccessReviewer:
    """Fills the `Rights` port. `now` reads like the wall clock, and never goes back.

    Raises Unavailable when made without a certificate to trust.
    """

    def __init__(self, settings: KubernetesAuth, *, now: Callable[[], float]) -> None:
        self._now = now
        self._reviews = Reviews(ACCESS, settings, now=now)

    async def allow(self, caller: Caller, read: Read) -> bool:
        """What was allowed within the last minutes stays so while the API server is away. Raises Unavailable."""
        key = msgspec.json.encode((caller.name, caller.identity, read)).decode()
        verdict = await self._reviews.verdict(key, lambda: self._review(caller, read))
        return verdict.caller is not None

    async def close(self) -> None:
        await self._reviews.close()

    async def _review(self, caller: Caller, read: Read) -> Verdict:
        identity = caller.identity or Identity()
        attributes = {
            "verb": read.right.verb,
            "group": GROUP,
            "resource": RESOURCE,
            "subresource": read.right.subresource,
            "namespace": read.namespace,
            "name": read.name,
        }
        spec = {
            "user": caller.name,
            "uid": identity.uid,
            "groups": identity.groups,
            "extra": dict(identity.extra),
            "resourceAttributes": attributes,
        }
        review = await self._reviews.ask(spec, _AccessReview)
        return Verdict(caller if review.status.allowed else None, self._now())
