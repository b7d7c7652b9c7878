"""The lock over the replicas of one Redis. Its keys are listed in redis.py."""

import logging
import secrets

from holdfast.watchdog.leadership import Lock
from holdfast.watchdog.store.redis import (
    COMPACTED_VERSION,
    FENCE,
    LOCK,
    OURS,
    SCHEMA,
    UNDERSTOOD,
    WHOLE_VERSION,
    WRITES,
    granted,
    require_ours,
)
from holdfast.watchdog.store.redislink import RedisLink
from holdfast.watchdog.store.store import Fence

logger = logging.getLogger(__name__)

# KEYS: schema, fence, writes, lock. ARGV: as in UNDERSTOOD, our name, milliseconds.
# Outcomes: TOKEN (integer): the lock is ours, also when it was already and the answer was lost |
# 'held' by another | {'schema', VERSION} as in UNDERSTOOD.
TAKE = (
    """
local holder = redis.call('GET', KEYS[4])
if holder and holder ~= ARGV[3] then return 'held' end
"""
    + UNDERSTOOD
    + """
redis.call('SET', KEYS[4], ARGV[3], 'PX', ARGV[4])
if holder then return tonumber(redis.call('GET', KEYS[2])) end
if not version then redis.call('SET', KEYS[1], ARGV[1]) end
redis.call('SET', KEYS[3], '0')
return redis.call('INCR', KEYS[2])
"""
)

# KEYS: fence, lock. ARGV: token, our name, milliseconds.
# Outcomes: 'done': the lock is ours for that long | 'fenced' and 'older' as in redis.py.
RENEW = (
    OURS
    + """
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
return 'done'
"""
)

# KEYS: lock. ARGV: our name. Outcomes: 1 when it was ours, else 0.
RELEASE = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
"""


class RedisLease:
    """Fills the `Lease` port over the store's own connection: when Redis is away, both together wait once."""

    def __init__(self, link: RedisLink, *, identity: str, ttl_s: float) -> None:
        self._link = link
        # Two lives of one pod are two holders.
        self._name = f"{identity}/{secrets.token_hex(4)}"
        self._ttl_ms = int(ttl_s * 1000)
        self._checked = False

    def look(self) -> Lock:
        return Lock.HELD if self._link.ask("EXISTS", LOCK) else Lock.FREE

    def take(self) -> Fence | None:
        """Raises InvalidInput, too, when this Redis must not be used as it is run."""
        if not self._checked:
            for advice in self._link.check():
                logger.warning("redis is run unwisely redis=%s advice=%s", self._link, advice)
            self._checked = True
        keys = [SCHEMA, FENCE, WRITES, LOCK]
        outcome = self._link.run(TAKE, keys, [WHOLE_VERSION, COMPACTED_VERSION, self._name, self._ttl_ms])
        if outcome == b"held":
            return None
        fence = granted(self._link, outcome)
        self._link.hold()  # when it fails, whoever asks again gets the same fence: the lock is ours
        return fence

    def renew(self, fence: Fence) -> None:
        require_ours(self._link, self._link.run(RENEW, [FENCE, LOCK], [fence, self._name, self._ttl_ms]))

    def replicas(self) -> int | None:
        return self._link.replicas()

    def release(self) -> None:
        self._link.run(RELEASE, [LOCK], [self._name])
