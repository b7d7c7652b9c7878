"""What a caller may read of TrainingJobs, by asking the Kubernetes API server.

Source: https://kubernetes.io/docs/reference/kubernetes-api/authorization-resources/subject-access-review-v1/
"""

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.watchdog.auth import Caller, Identity
from holdfast.watchdog.readership import GROUP, RESOURCE, Read
from holdfast.watchdog.reviews import Kind, Reviews
from holdfast.watchdog.settings import KubernetesAuth
from holdfast.watchdog.verdicts import Verdict

KIND = Kind("authorization.k8s.io/v1", "SubjectAccessReview", "who may read a job")


class _Status(msgspec.Struct):
    allowed: bool = False


class _Review(msgspec.Struct):
    status: _Status


class AccessReviewer:
    """Fills the `Rights` port. `now` reads like the wall clock, and never goes back.

    Raises Unavailable when made without a certificate to trust.
    """

    def __init__(self, settings: KubernetesAuth, *, now: Callable[[], float]) -> None:
        self._now = now
        self._reviews = Reviews(KIND, settings, now=now)

    async def allow(self, caller: Caller, read: Read) -> bool:
        """What was allowed within the last minutes stays so while the API server is away. Raises Unavailable."""
        key = msgspec.json.encode((caller.name, caller.identity, read)).decode()
        verdict = await self._reviews.verdict(key, lambda: self._review(caller, read))
        return verdict.caller is not None

    async def close(self) -> None:
        await self._reviews.close()

    async def _review(self, caller: Caller, read: Read) -> Verdict:
        review = await self._reviews.ask(_spec(caller, read), _Review)
        return Verdict(caller if review.status.allowed else None, self._now())


def _spec(caller: Caller, read: Read) -> dict[str, Any]:
    identity = caller.identity or Identity()
    attributes = {
        "verb": read.right.verb,
        "group": GROUP,
        "resource": RESOURCE,
        "subresource": read.right.subresource,
        "namespace": read.namespace,
        "name": read.name,
    }
    return {
        "user": caller.name,
        "uid": identity.uid,
        "groups": identity.groups,
        "extra": dict(identity.extra),
        "resourceAttributes": attributes,
    }
