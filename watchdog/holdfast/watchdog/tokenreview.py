"""Whose a token is, by asking the Kubernetes API server.

Source: https://kubernetes.io/docs/reference/kubernetes-api/authentication-resources/token-review-v1/
"""

import asyncio
import base64
import binascii
import logging
import ssl
from collections.abc import Callable

import aiohttp
import msgspec

from holdfast.api.decoding import decode_json
from holdfast.api.errors import Malformed, Unavailable
from holdfast.watchdog.auth import Caller
from holdfast.watchdog.grants import GrantsFile
from holdfast.watchdog.settings import KubernetesAuth
from holdfast.watchdog.verdicts import Trust, Verdict, Verdicts

logger = logging.getLogger(__name__)

PATH = "/apis/authentication.k8s.io/v1/tokenreviews"
# Which pod a bound token is of.
# Source: https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/#schema-for-service-account-private-claims
POD_NAME = "authentication.kubernetes.io/pod-name"
# A review is a signature and a look into the API server's cache; one that restarts refuses connections at once.
REVIEW_S = 3.0
# After a leader's death every launcher comes at once; the API server has others to serve.
REVIEWS_AT_ONCE = 32
# While it is away, not every caller waits for it anew.
PAUSE_S = 1.0


class _User(msgspec.Struct):
    username: str = ""
    groups: list[str] = []
    extra: dict[str, list[str]] = {}


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
        self._settings = settings
        self._now = now
        self._grants = GrantsFile(settings.grants)
        self._trusted = _trusted(settings)
        self._verdicts = Verdicts()
        self._asked: dict[str, asyncio.Task[Verdict]] = {}
        self._http: aiohttp.ClientSession | None = None
        self._paused_until = 0.0
        self._trouble: str | None = None

    async def caller(self, token: str) -> Caller | None:
        """A token accepted within the last minutes is accepted on while the API server is away."""
        now = self._now()
        known = self._verdicts.get(token, now, Trust.FRESH)
        if known is None:
            try:
                known = await self._verdict(token)
            except Unavailable:
                known = self._verdicts.get(token, now, Trust.LAST_RESORT)
                if known is None:
                    raise
        return known.caller

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()

    async def _verdict(self, token: str) -> Verdict:
        """Ask once for all who present the same token meanwhile."""
        task = self._asked.get(token)
        if task is None:
            task = asyncio.create_task(self._review(token))
            self._asked[token] = task
            task.add_done_callback(lambda done: self._answered(token, done))
        return await asyncio.shield(task)

    def _answered(self, token: str, task: "asyncio.Task[Verdict]") -> None:
        del self._asked[token]
        if not task.cancelled():
            task.exception()  # seen, also when everybody who asked has gone meanwhile

    async def _review(self, token: str) -> Verdict:
        status = await self._status(token)
        caller = None
        # An API server that knows nothing of audiences says none; then the token was made for anybody.
        if status.authenticated and self._settings.audience in status.audiences:
            caller = self._grants.newest().caller(
                status.user.username, status.user.groups, next(iter(status.user.extra.get(POD_NAME, ())), None)
            )
        verdict = Verdict(caller, self._now(), expiry(token))
        self._verdicts.put(token, verdict)
        return verdict

    async def _status(self, token: str) -> _Status:
        if self._trouble is not None and self._now() < self._paused_until:
            raise Unavailable(self._trouble)
        try:
            status = await self._post(token)
        except Unavailable as error:
            if self._trouble is None:
                logger.error("tokens cannot be reviewed reason=%s", error)
            self._trouble, self._paused_until = str(error), self._now() + PAUSE_S
            raise
        if self._trouble is not None:
            logger.info("tokens are reviewed again")
        self._trouble = None
        return status

    async def _post(self, token: str) -> _Status:
        spec = {"token": token.encode("utf-8", "replace").decode(), "audiences": [self._settings.audience]}
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
        headers = {"Authorization": f"Bearer {self._own_token()}", "Content-Type": "application/json"}
        url = self._settings.api_server + PATH
        try:
            async with self._session().post(url, data=msgspec.json.encode(review), headers=headers) as response:
                body = await response.read()
                if response.status not in (200, 201):
                    raise Unavailable(
                        f"the API server answers {response.status} to a token review{_why(response)}"
                    )
                return decode_json(body, _Review).status
        except (aiohttp.ClientError, TimeoutError, Malformed, OSError) as error:
            says = str(error) or f"no answer within {REVIEW_S:.0f} s"
            raise Unavailable(f"the API server cannot be asked whose a token is: {says}") from error

    def _own_token(self) -> str:
        # Read each time: Kubernetes replaces it every hour or so.
        path = self._settings.account / "token"
        try:
            return path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise Unavailable(f"our own token {path} cannot be read: {error}") from error

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            connector = aiohttp.TCPConnector(ssl=self._trusted, limit=REVIEWS_AT_ONCE)
            self._http = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=REVIEW_S))
        return self._http


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


def _trusted(settings: KubernetesAuth) -> ssl.SSLContext | bool:
    if not settings.api_server.startswith("https://"):
        return True
    path = settings.account / "ca.crt"
    try:
        return ssl.create_default_context(cafile=path)
    except (OSError, ssl.SSLError) as error:
        raise Unavailable(f"the API server's certificate authority {path} cannot be read: {error}") from error


def _why(response: aiohttp.ClientResponse) -> str:
    return {
        401: ": our own account's token is not accepted",
        403: ": our own account may not create tokenreviews (bind it to system:auth-delegator)",
    }.get(response.status, "")
