"""Whose a token is and who may read a TrainingJob, by asking the Kubernetes API server; remembered for a while.

Sources: https://kubernetes.io/docs/reference/kubernetes-api/authentication-resources/token-review-v1/
https://kubernetes.io/docs/reference/kubernetes-api/authorization-resources/subject-access-review-v1/
"""

import asyncio
import base64
import binascii
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.api.decoding import decode_json
from holdfast.api.errors import Malformed, Unavailable
from holdfast.watchdog.access.auth import Caller, GrantsFile, Identity
from holdfast.watchdog.access.readership import GROUP, RESOURCE, Read
from holdfast.watchdog.access.verdicts import LAST_RESORT_S, Verdict, Verdicts
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


class Reviews:
    """Reviews of one kind: the API's group and version, its name, and what is asked with it, in words.

    `now` reads like the wall clock, and never goes back. Raises Unavailable when made without a certificate to
    trust.
    """

    api: ClassVar[str]
    kind: ClassVar[str]
    question: ClassVar[str]

    def __init__(self, settings: KubernetesAuth, *, now: Callable[[], float]) -> None:
        self._now = now
        login = ServiceAccount(settings.api_server, settings.account)
        self._api = KubeClient(login, connections=REVIEWS_AT_ONCE)
        self._verdicts = Verdicts()
        self._asked: dict[str, asyncio.Task[Verdict]] = {}
        self._paused_until = 0.0
        self._trouble: str | None = None

    async def verdict(self, key: str, review: Callable[[], Awaitable[Verdict]]) -> Verdict:
        """What is remembered for `key`, else what `review` says, which is asked once for all who ask meanwhile.

        Who was accepted within the last minutes stays so while the API server is away. Raises Unavailable.
        """
        now = self._now()
        if (known := self._verdicts.get(key, now)) is not None:
            return known

        async def remembered() -> Verdict:
            verdict = await review()
            self._verdicts.put(key, verdict)
            return verdict

        def answered(done: "asyncio.Task[Verdict]") -> None:
            del self._asked[key]
            if not done.cancelled():
                done.exception()  # seen, also when everybody who asked has gone meanwhile

        if (task := self._asked.get(key)) is None:
            task = self._asked[key] = asyncio.create_task(remembered())
            task.add_done_callback(answered)
        try:
            return await asyncio.shield(task)
        except Unavailable:
            if (known := self._verdicts.get(key, now, LAST_RESORT_S)) is None:
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
                logger.error("reviews cannot be had kind=%s reason=%s", self.kind, error)
            self._trouble, self._paused_until = str(error), self._now() + PAUSE_S
            raise
        if self._trouble is not None:
            logger.info("reviews are had again kind=%s", self.kind)
        self._trouble = None
        return review

    async def close(self) -> None:
        """Release the connections. No call follows."""
        await self._api.close()

    async def _post(self, spec: Mapping[str, Any], of: type[Review]) -> Review:
        resource = f"{self.kind.lower()}s"
        body = msgspec.json.encode({"apiVersion": self.api, "kind": self.kind, "spec": spec})
        request = Request("POST", f"/apis/{self.api}/{resource}", body=body, timeout_s=REVIEW_S)
        try:
            reply = await self._api.send(request)
            if reply.status in (200, 201):
                return decode_json(reply.content, of)
        except (Unavailable, Malformed) as error:
            raise Unavailable(f"the API server cannot be asked {self.question}: {error}") from error
        why = {
            401: ": our own account's token is not accepted",
            403: f": our own account may not create {resource} (bind it to system:auth-delegator)",
        }.get(reply.status, "")
        raise Unavailable(f"the API server answers {reply.status} to a {self.kind}{why}")


# Whose a token is.

# Which pod a token is of, and where that runs; of one that was made for no pod neither is said.
# Source: https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/#schema-for-service-account-private-claims
POD_NAME = "authentication.kubernetes.io/pod-name"
NODE_NAME = "authentication.kubernetes.io/node-name"


class _User(msgspec.Struct):
    username: str = ""
    uid: str = ""
    groups: list[str] = []
    extra: dict[str, list[str]] = {}


class _TokenStatus(msgspec.Struct):
    authenticated: bool = False
    user: _User = msgspec.field(default_factory=_User)
    audiences: list[str] = []
    error: str = ""


class _TokenReview(msgspec.Struct):
    status: _TokenStatus


class TokenReviewer(Reviews):
    """Fills the `Authenticator` port. Raises InvalidInput, too, when made with grants that cannot be read."""

    api = "authentication.k8s.io/v1"
    kind = "TokenReview"
    question = "whose a token is"

    def __init__(self, settings: KubernetesAuth, *, now: Callable[[], float]) -> None:
        self._audience = settings.audience
        self._grants = GrantsFile(settings.grants)
        super().__init__(settings, now=now)

    async def caller(self, token: str) -> Caller | None:
        """A token accepted within the last minutes is accepted on while the API server is away."""

        async def review() -> Verdict:
            spec = {"token": token.encode("utf-8", "replace").decode(), "audiences": [self._audience]}
            status = (await self.ask(spec, _TokenReview)).status
            caller = None
            # An API server that knows nothing of audiences says none; then the token was made for anybody.
            if status.authenticated and self._audience in status.audiences:
                user = status.user
                pod, node = (next(iter(user.extra.get(name, ())), None) for name in (POD_NAME, NODE_NAME))
                extra = tuple((key, tuple(values)) for key, values in sorted(user.extra.items()))
                identity = Identity(user.uid, tuple(user.groups), extra)
                granted = self._grants.newest().caller(user.username, user.groups, pod)
                caller = replace(granted, identity=identity, node=node)
            return Verdict(caller, self._now(), expiry(token))

        return (await self.verdict(token, review)).caller


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


class _AccessStatus(msgspec.Struct):
    allowed: bool = False


class _AccessReview(msgspec.Struct):
    status: _AccessStatus


class AccessReviewer(Reviews):
    """Fills the `Rights` port."""

    api = "authorization.k8s.io/v1"
    kind = "SubjectAccessReview"
    question = "who may read a job"

    async def allow(self, caller: Caller, read: Read) -> bool:
        """What was allowed within the last minutes stays so while the API server is away. Raises Unavailable."""
        identity = caller.identity or Identity()
        spec = {
            "user": caller.name,
            "uid": identity.uid,
            "groups": identity.groups,
            "extra": dict(identity.extra),
            "resourceAttributes": {
                "verb": read.right.verb,
                "group": GROUP,
                "resource": RESOURCE,
                "subresource": read.right.subresource,
                "namespace": read.namespace,
                "name": read.name,
            },
        }

        async def review() -> Verdict:
            allowed = (await self.ask(spec, _AccessReview)).status.allowed
            return Verdict(caller if allowed else None, self._now())

        key = msgspec.json.encode((caller.name, caller.identity, read)).decode()
        return (await self.verdict(key, review)).caller is not None
