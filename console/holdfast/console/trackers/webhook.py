"""Tells somebody else of each incident when it begins and when it is over: a POST, signed where a secret is given.

`X-Holdfast-Signature` is `sha256=` and the HMAC of the time in `X-Holdfast-Timestamp`, a full stop and the body.
`X-Holdfast-Delivery` is the same each time that one thing is said: who has seen it may leave the rest unread.
"""

import hashlib
import hmac
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from holdfast.api.errors import InvalidInput, Problem, Unavailable
from holdfast.console.trackers.reach import AllowedHosts, call
from holdfast.console.trackers.records import Ended, Note
from holdfast.console.trackers.settling import Retold, Shown

FIELD: Final = "spec.reporting.webhook"
SECRET: Final = "WEBHOOK_SECRET"
TOKEN: Final = "WEBHOOK_TOKEN"
OLD_S: Final = 3600.0
"""After so long nobody needs to be called any more: what could not be said is left out, and the log says so."""

logger = logging.getLogger(__name__)


class Webhook:
    """One address. `now` is seconds since 1970."""

    forgets = False
    shows = False

    def __init__(
        self, job: str, url: str, allowed: AllowedHosts, environment: Mapping[str, str], now: Callable[[], float]
    ) -> None:
        self._job = job
        self._url = url
        self._allowed = allowed
        self._secret = environment.get(SECRET, "")
        self._token = environment.get(TOKEN, "")
        self._now = now

    def open(self, series: str, published: int) -> int:
        self._allowed.check(self._url, field=FIELD)
        return published

    def show(self, rows: Sequence[Shown]) -> None:
        """Rows are no incidents."""

    def back(self, step: int) -> None:
        """Nothing of steps was said."""

    def note(self, note: Note | Retold) -> None:
        if isinstance(note, Retold) or note.is_old or note.event not in ("opened", "closed"):
            return
        delivery = f"{self._job}/{note.id}/{note.event}"
        incident = json.loads(note.body) if note.body else {}
        said = {
            "delivery": delivery,
            "job": self._job,
            "event": note.event,
            "step": note.step,
            "title": note.title,
        }
        body = json.dumps({**said, "text": note.text, "incident": incident}).encode()
        now = self._now()
        headers = {
            "Content-Type": "application/json",
            "X-Holdfast-Event": f"incident.{note.event}",
            "X-Holdfast-Delivery": delivery,
            **signed(body, self._secret, at=int(now)),
        }
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            reply = call(self._allowed, "POST", self._url, body=body, headers=headers, field=FIELD)
        except Unavailable as error:
            self._give_up_or_raise(note, delivery, str(error), now)
            return
        if reply.is_good:
            return
        if 300 <= reply.status < 400:
            fix = f"name the address itself: it answers with a redirection ({reply.status}), which is not followed"
            raise InvalidInput(Problem(FIELD, self._url, fix))
        if reply.may_change:
            self._give_up_or_raise(note, delivery, f"status {reply.status}", now)
            return
        logger.warning("a webhook refuses what it is sent delivery=%s status=%d", delivery, reply.status)

    def _give_up_or_raise(self, note: Note, delivery: str, why: str, now: float) -> None:
        if now > note.at + OLD_S:
            logger.warning("a webhook was not told, it is too long ago delivery=%s reason=%s", delivery, why)
            return
        raise Unavailable(f"the webhook does not take {delivery}: {why}")

    def close(self, ended: Ended | None) -> None:
        """There is nothing to end."""


def signed(body: bytes, secret: str, *, at: int) -> dict[str, str]:
    """The headers that prove who says `body` at this time; none without a secret."""
    if not secret:
        return {}
    digest = hmac.new(secret.encode(), b"%d.%s" % (at, body), hashlib.sha256).hexdigest()
    return {"X-Holdfast-Timestamp": str(at), "X-Holdfast-Signature": f"sha256={digest}"}


def wall_clock() -> float:
    """Seconds since 1970, which the receiver's clock is compared with."""
    return time.time()  # noqa: TID251 - the one place
