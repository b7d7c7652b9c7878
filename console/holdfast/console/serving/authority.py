"""Who may read and command what: the watchdog says it of each token, and is believed for a short time.

Tokens are kept as hashes only. While the watchdog is away, what it said lately of a token stands: readers are
shown what the console holds, which is no more than they might read then.
"""

import asyncio
import hashlib
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from holdfast.api.decoding import decode_json
from holdfast.api.errors import HoldfastError, Malformed, Unavailable
from holdfast.api.feed import Whoami
from holdfast.wire.answer import explanation
from holdfast.wire.http import WatchdogHttp

KEPT_S: Final = 15.0
REFUSED_KEPT_S: Final = 3.0
AWAY_KEPT_S: Final = 600.0
VERDICTS_MAX: Final = 4096
AT_ONCE: Final = 8  # questions to the watchdog: a flood of made-up tokens must not become its flood
WAIT_S: Final = 5.0


class Refused(HoldfastError):
    """The caller is not let in; `status` is that of HTTP."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True, slots=True)
class _Verdict:
    whoami: Whoami | None
    at: float
    why: str = ""


class Authority:
    """`clock` gives monotonic seconds."""

    def __init__(self, http: WatchdogHttp, clock: Callable[[], float]) -> None:
        self._http = http
        self._clock = clock
        self._verdicts: dict[bytes, _Verdict] = {}
        self._refusals: dict[bytes, _Verdict] = {}
        self._asked: dict[bytes, asyncio.Future[Whoami]] = {}
        self._room = asyncio.Semaphore(AT_ONCE)

    async def whoami(self, token: str, job: str = "") -> Whoami:
        """What the token allows of `job`, or of all jobs. Raises Refused for one of nobody, Unavailable."""
        if not token:
            raise Refused(401, "this needs a token: send the header 'Authorization: Bearer TOKEN'")
        key = hashlib.sha256(f"{job}\0{token}".encode("utf-8", "surrogateescape")).digest()
        known, now = self._verdicts.get(key) or self._refusals.get(key), self._clock()
        if known is not None and now < known.at + (REFUSED_KEPT_S if known.whoami is None else KEPT_S):
            return _said(known)
        asked = self._asked.get(key)
        if asked is None:  # many readers of one token ask once
            asked = self._asked[key] = asyncio.ensure_future(self._ask(key, token, job))
            asked.add_done_callback(lambda _: self._asked.pop(key, None))
        try:
            return await asyncio.shield(asked)
        except Unavailable:
            if known is not None and known.whoami is not None and now < known.at + AWAY_KEPT_S:
                return known.whoami
            raise

    async def reader(self, token: str, job: str) -> Whoami:
        """As `whoami`, for who reads `job`. Raises also Refused when that is not allowed."""
        found = await self.whoami(token, job)
        if "view" not in found.may:
            raise Refused(403, f"{found.name} may not read job {job}")
        return found

    async def _ask(self, key: bytes, token: str, job: str) -> Whoami:
        path = f"/v1/whoami?job={urllib.parse.quote(job, safe='')}" if job else "/v1/whoami"
        try:
            async with asyncio.timeout(WAIT_S), self._room:
                status, content = await self._http.answered("GET", path, token=token)
        except TimeoutError:
            raise Unavailable("the watchdog is too busy to say whose this token is; ask again") from None
        if status == 400:
            raise Refused(404, explanation(content) or f"there is no job {job}")
        if status in (401, 403):
            verdict = _Verdict(None, self._clock(), "this needs a valid token: the watchdog knows nobody by it")
        elif status != 200:
            raise Unavailable(f"the watchdog does not say whose this token is: {explanation(content) or status}")
        else:
            try:
                verdict = _Verdict(decode_json(content, Whoami), self._clock())
            except Malformed as error:
                raise Unavailable(f"the watchdog's answer is not understood: {error}") from error
        self._keep(key, verdict)
        return _said(verdict)

    def _keep(self, key: bytes, verdict: _Verdict) -> None:
        """Those of nobody in a place of their own: a flood of made-up tokens must not make anybody unknown."""
        self._verdicts.pop(key, None)
        self._refusals.pop(key, None)
        kept = self._refusals if verdict.whoami is None else self._verdicts
        kept[key] = verdict
        if len(kept) > VERDICTS_MAX:
            kept.pop(next(iter(kept)))


def _said(verdict: _Verdict) -> Whoami:
    if verdict.whoami is None:
        raise Refused(401, verdict.why)
    return verdict.whoami
