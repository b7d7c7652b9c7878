"""Who may lead: a lock that expires, and hands out a fence with itself.

The lock says only when somebody else may take over. That two never write is the fence's work: it is raised in the
same step in which the lock changes hands, and every write of the one before is refused from then on.
"""

from enum import Enum
from typing import Protocol

from holdfast.watchdog.store.store import Fence


class Lock(Enum):
    """How the lock stands, for one who does not hold it."""

    FREE = "free"
    HELD = "held"


class Lease(Protocol):
    """The port of the lock. Every call raises Unavailable when it cannot be asked now."""

    def look(self) -> Lock:
        """How it stands. Changes nothing."""
        ...

    def take(self) -> Fence | None:
        """Take the lock when it is free, and the fence with it; None while somebody else holds it."""
        ...

    def renew(self, fence: Fence) -> None:
        """Hold it on. Also takes it again when it has expired and nobody took it. Raises Fenced when one did."""
        ...

    def replicas(self) -> int | None:
        """How many replicas keep up with what is written; None where there are to be none."""
        ...

    def release(self) -> None:
        """Let the next one have it at once; nothing when it is not ours."""
        ...
