"""What the Kubernetes API server says when it is asked to review something, remembered for a while."""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp
import msgspec

from holdfast.api.decoding import decode_json
from holdfast.api.errors import Malformed, Unavailable
from holdfast.watchdog.settings import KubernetesAuth
from holdfast.watchdog.verdicts import Trust, Verdict, Verdicts

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
        self._settings = settings
        self._now = now
        self._trusted = _trusted(settings)
        self._verdicts = Verdicts()
        self._asked: dict[str, asyncio.Task[Verdict]] = {}
        self._http: aiohttp.ClientSession | None = None
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
        if self._http is not None:
            await self._http.close()

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
        review = {"apiVersion": self._kind.api, "kind": self._kind.name, "spec": spec}
        headers = {"Authorization": f"Bearer {self._own_token()}", "Content-Type": "application/json"}
        url = self._settings.api_server + self._kind.path
        try:
            async with self._session().post(url, data=msgspec.json.encode(review), headers=headers) as response:
                body = await response.read()
                if response.status not in (200, 201):
                    why = self._why(response.status)
                    raise Unavailable(f"the API server answers {response.status} to a {self._kind.name}{why}")
                return decode_json(body, of)
        except (aiohttp.ClientError, TimeoutError, Malformed, OSError) as error:
            says = str(error) or f"no answer within {REVIEW_S:.0f} s"
            raise Unavailable(f"the API server cannot be asked {self._kind.question}: {says}") from error

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

    def _why(self, status: int) -> str:
        return {
            401: ": our own account's token is not accepted",
            403: f": our own account may not create {self._kind.resource} (bind it to system:auth-delegator)",
        }.get(status, "")


def _trusted(settings: KubernetesAuth) -> ssl.SSLContext | bool:
    if not settings.api_server.startswith("https://"):
        return True
    path = settings.account / "ca.crt"
    try:
        return ssl.create_default_context(cafile=path)
    except (OSError, ssl.SSLError) as error:
        raise Unavailable(f"the API server's certificate authority {path} cannot be read: {error}") from error
