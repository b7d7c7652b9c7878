"""Who may read what: whoever was granted the role view everything, everybody else what Kubernetes lets them read.

A job's namespace is who may read it: the API server is asked whether the caller may `get` its TrainingJob. What
its scripts print needs `get` on `trainingjobs/log`, as the logs of pods need a right of their own.
"""

import asyncio
from collections.abc import Iterable
from enum import Enum
from typing import Protocol

import msgspec

from holdfast.watchdog.access.auth import Caller, Role

GROUP = "holdfast.dev"
RESOURCE = "trainingjobs"
ALL_NAMESPACES = ""


class Right(msgspec.Struct, frozen=True):
    """What Kubernetes calls one kind of read."""

    verb: str
    subresource: str = ""

    def __str__(self) -> str:
        resource = f"{RESOURCE}/{self.subresource}" if self.subresource else RESOURCE
        return f"{self.verb} {resource}.{GROUP}"


GET_JOB = Right("get")
LIST_JOBS = Right("list")
GET_LOG = Right("get", "log")


class Read(msgspec.Struct, frozen=True):
    """One read: of the job `name`, of all jobs of a namespace, or of ALL_NAMESPACES."""

    right: Right
    namespace: str
    name: str = ""


class Decision(Enum):
    """What is known without asking."""

    ALLOWED = "allowed"
    REFUSED = "refused"
    ASK = "ask"  # Kubernetes decides


def decide(caller: Caller, right: Right | None) -> Decision:
    """Whether `caller` may read what needs `right`; None: what is about the whole cluster."""
    if Role.VIEW in caller.roles:
        return Decision.ALLOWED
    if right is None or caller.identity is None:
        return Decision.REFUSED
    return Decision.ASK


class Rights(Protocol):
    """What Kubernetes lets callers read."""

    async def allow(self, caller: Caller, read: Read) -> bool:
        """Raises Unavailable when that cannot be told now."""

    async def close(self) -> None:
        """Release what is held. No call follows."""


class Readership:
    """Decides every read; without `rights` only roles count.

    Calls raise Unavailable when Kubernetes has to decide and cannot be asked.
    """

    def __init__(self, rights: Rights | None = None) -> None:
        self._rights = rights

    async def may(self, caller: Caller, read: Read) -> bool:
        decision = decide(caller, read.right)
        if decision is Decision.ASK:
            return self._rights is not None and await self._rights.allow(caller, read)
        return decision is Decision.ALLOWED

    async def listed(self, caller: Caller, namespaces: Iterable[str]) -> frozenset[str]:
        """Those of the namespaces whose jobs the caller may list."""
        asked = sorted(set(namespaces))
        if await self.may(caller, Read(LIST_JOBS, ALL_NAMESPACES)):
            return frozenset(asked)
        may = await asyncio.gather(*(self.may(caller, Read(LIST_JOBS, each)) for each in asked))
        return frozenset(each for each, is_listed in zip(asked, may, strict=True) if is_listed)
