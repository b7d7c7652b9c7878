"""The connection to Redis: bounded waits, no retries of its own, one place where its errors become ours.

The only module that imports redis. Calls are made from the event loop, so each of them is bounded: a partitioned
Redis costs `TIMEOUT_S` once, and then nothing for `PAUSE_S`, during which every call fails at once.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry

from holdfast.api.errors import Damaged, HoldfastError, InvalidInput, Problem, Unavailable
from holdfast.watchdog.settings import RedisAddress
from holdfast.watchdog.store.resolving import Resolver

# A script takes well below a millisecond, a round trip in one data centre as well; this is silence.
TIMEOUT_S = 0.25
# With the time-out above, at most a fifth of the loop's time goes into a Redis that is away.
PAUSE_S = 1.0


class _PlainConnection(redis.Connection):
    """Looks its host's name up in bounded time. One program talks to one Redis, so they share what they know."""

    resolver = Resolver()

    def _connect(self) -> Any:
        name, self.host = self.host, self.resolver.address(self.host)
        try:
            return super()._connect()  # type: ignore[no-untyped-call]  # the library has not annotated it
        finally:
            self.host = name


class _EncryptedConnection(redis.SSLConnection, _PlainConnection):
    """The same; by the order of its bases, the certificate is checked against the name, not the address."""


class RedisLink:
    """Used from one thread. Every call raises Unavailable, or Damaged when a key holds what we never wrote."""

    def __init__(self, address: RedisAddress, *, now: Callable[[], float] = time.monotonic) -> None:
        self._address = address
        self._now = now
        self._paused_until = 0.0
        self._trouble = ""
        pool = redis.ConnectionPool(
            connection_class=_EncryptedConnection if address.encrypted else _PlainConnection,
            host=address.host,
            port=address.port,
            db=address.database,
            username=address.username,
            password=address.password,
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
            # The library's own retries wait up to a minute; what is called from the event loop may not.
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            # Each of these is a round trip more at every connect.
            driver_info=None,
            maint_notifications_config=MaintNotificationsConfig(enabled=False),
        )
        self._client = redis.Redis.from_pool(pool)

    def __str__(self) -> str:
        return str(self._address)

    def run(self, script: str, keys: Sequence[str], values: Sequence[str | bytes | int | float]) -> Any:
        """Run a script: all of it or nothing of it, with nobody else's command in between."""
        # Sent whole each time: a few hundred bytes, and right again after Redis has been restarted.
        return self._bounded(lambda client: client.eval(script, len(keys), *keys, *values))

    def ask(self, *command: str | int) -> Any:
        """One command that only reads."""
        return self._bounded(lambda client: client.execute_command(*command))

    def check(self) -> tuple[str, ...]:
        """What is unwise in how this Redis is run, in words. Raises InvalidInput when it must not be used so."""
        facts = self._bounded(lambda client: client.info())
        if not facts.get("aof_enabled"):
            raise InvalidInput(
                Problem("--store", str(self), "run this Redis with 'appendonly yes': it would forget")
            )
        if facts.get("role") == "slave":
            raise InvalidInput(Problem("--store", str(self), "name the primary: this one is a replica"))
        if facts.get("maxmemory") and facts.get("maxmemory_policy") != "noeviction":
            fix = "run this Redis with 'maxmemory-policy noeviction': it would throw journals away"
            raise InvalidInput(Problem("--store", str(self), fix))
        return self._advice()

    def close(self) -> None:
        """Close the connection; a later call opens it again."""
        self._client.close()

    def _advice(self) -> tuple[str, ...]:
        try:
            fsync = self._bounded(lambda client: client.config_get("appendfsync")).get("appendfsync")
        except HoldfastError:
            return ("whether it writes to its disk at once is Unknown: CONFIG GET appendfsync is not allowed",)
        if fsync == "no":
            return ("appendfsync is no: it may lose half a minute with its machine; set everysec or always",)
        return ()

    def _bounded(self, send: Callable[[Any], Any]) -> Any:
        if self._now() < self._paused_until:
            raise Unavailable(self._trouble)
        try:
            return send(self._client)
        except redis.RedisError as error:
            raise self._translated(error) from error
        except OSError as error:  # a name that cannot be resolved
            raise self._away(str(error)) from error

    def _translated(self, error: redis.RedisError) -> HoldfastError:
        text = str(error)
        match error:
            case redis.AuthenticationError():
                return self._away("it refuses our password; check --store-password-file")
            case redis.BusyLoadingError():
                return self._away("it is still loading its data")
            case redis.TimeoutError():
                return self._away(f"no answer within {TIMEOUT_S} s")
            case redis.ConnectionError():
                return self._away(text)
            case redis.ReadOnlyError():
                return Unavailable(f"{self}: it is a replica and takes no writes")
            case redis.OutOfMemoryError():
                return Unavailable(f"{self}: its memory is full")
            case NoPermissionError():
                return Unavailable(f"{self}: its access rules refuse us: {text}")
        if "WRONGTYPE" in text:
            return Damaged(f"{self}: a key of ours holds something else: {text}")
        return Unavailable(f"{self}: {text}")

    def _away(self, why: str) -> Unavailable:
        self._trouble = f"{self}: {why}"
        self._paused_until = self._now() + PAUSE_S
        return Unavailable(self._trouble)
