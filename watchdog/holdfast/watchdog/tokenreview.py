"""Whose a token is, by asking the Kubernetes API server.

Source: https://kubernetes.io/docs/reference/kubernetes-api/authentication-resources/token-review-v1/
"""

import base64
import binascii
from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from holdfast.api.decoding import decode_json
from holdfast.api.errors import Malformed
from holdfast.watchdog.auth import Caller, Identity
from holdfast.watchdog.grants import GrantsFile
from holdfast.watchdog.reviews import Kind, Reviews
from holdfast.watchdog.settings import KubernetesAuth
from holdfast.watchdog.verdicts import Verdict

# Which pod a bound token is of, and where that runs; an API server before 1.30 says no node.
# Source: https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/#schema-for-service-account-private-claims
POD_NAME = "authentication.kubernetes.io/pod-name"
NODE_NAME = "authentication.kubernetes.io/node-name"
KIND = Kind("authentication.k8s.io/v1", "TokenReview", "whose a token is")


class _User(msgspec.Struct):
    username: str = ""
    uid: str = ""
    groups: list[str] = []
    extra: dict[str, list[str]] = {}

    def identity(self) -> Identity:
        extra = tuple((key, tuple(values)) for key, values in sorted(self.extra.items()))
        return Identity(self.uid, tuple(self.groups), extra)


class _Status(msgspec.Struct):
    authenticated: bool = False
    user: _User = msgspec.field(default_factory=_User)
    audiences: list[str] = []
    error: str = ""


class _Review(msgspec.Struct):
    status: _Status


class TokenReviewer:
    """Fills the `Authenticator` port. `now` reads like the wall clock, and never goes back.

    Raises Unavailable when made without a certificate to trust, InvalidInput for grants that cannot be read.
    """

    def __init__(self, settings: KubernetesAuth, *, now: Callable[[], float]) -> None:
        self._audience = settings.audience
        self._now = now
        self._grants = GrantsFile(settings.grants)
        self._reviews = Reviews(KIND, settings, now=now)

    async def caller(self, token: str) -> Caller | None:
        """A token accepted within the last minutes is accepted on while the API server is away."""
        return (await self._reviews.verdict(token, lambda: self._review(token))).caller

    async def close(self) -> None:
        await self._reviews.close()

    async def _review(self, token: str) -> Verdict:
        spec = {"token": token.encode("utf-8", "replace").decode(), "audiences": [self._audience]}
        status = (await self._reviews.ask(spec, _Review)).status
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
