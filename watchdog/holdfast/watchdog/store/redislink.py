"""The connection to Redis: bounded waits, no retries of its own, one place where its errors become ours.

The only module that imports redis. Calls are made from the event loop, so each of them is bounded: a partitioned
Redis costs `TIMEOUT_S` once, and then nothing for `PAUSE_S`, during which every call fails at once.

A Redis with replicas is found anew with every connection: its Sentinels are asked which of them takes writes. What
must outlive that one is waited for until one more holds it (`hold`).
"""

import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry

from holdfast.api.errors import Damaged, HoldfastError, InvalidInput, Problem, Unavailable
from holdfast.watchdog.settings import Host, RedisAddress

# A cluster's name service answers in a few milliseconds; this is silence.
WAIT_S = 0.25
# With an address at hand there is less reason to wait.
WAIT_KNOWN_S = 0.05

# A script takes well below a millisecond, a round trip in one data centre as well; this is silence.
TIMEOUT_S = 0.25
# With the time-out above, at most a fifth of the loop's time goes into a Redis that is away.
PAUSE_S = 1.0
# Sentinels are asked one after the other while one of them is gone with its machine.
SENTINEL_TIMEOUT_S = 0.1
# A replica in one data centre answers within a millisecond. Less than `TIMEOUT_S`, for Redis answers after it.
HELD_WITHIN_MS = 200
# A replica acknowledges once a second.
# Source: https://redis.io/docs/latest/operate/oss_and_stack/management/replication/
ACKNOWLEDGED_WITHIN_S = 5


# Names of hosts, looked up without ever waiting long: the system's own look-up may take half a minute.
#
# A look-up runs in a thread of its own and is waited for shortly. While it takes longer, the last address serves.


class Resolver:
    """Used from one thread. `lookup` gives an address or raises OSError."""

    def __init__(self, lookup: Callable[[str], str] | None = None) -> None:
        self._lookup = lookup or _system_lookup
        self._known: dict[str, str] = {}
        self._asked: dict[str, Future[str]] = {}

    def address(self, host: str) -> str:
        """An address of the host. Raises OSError when there is none, or none was found in time."""
        if (answer := self._asked.get(host)) is None:
            answer = self._asked[host] = Future()
            # It ends with its look-up, and keeps no program from ending.
            threading.Thread(target=self._ask, args=(host, answer), name=f"look-up of {host}", daemon=True).start()
        known = self._known.get(host)
        if not wait((answer,), WAIT_S if known is None else WAIT_KNOWN_S).done:
            if known is None:
                raise OSError(f"the name {host} could not be looked up within {WAIT_S} s")
            return known
        del self._asked[host]
        if (error := answer.exception()) is None:
            self._known[host] = answer.result()
        elif known is None:  # else the name service is away, which says nothing about the host
            raise OSError(f"the name {host} is not known: {error}")
        return self._known[host]

    def _ask(self, host: str, answer: "Future[str]") -> None:
        try:
            answer.set_result(self._lookup(host))
        except Exception as error:  # whoever waits gets it
            answer.set_exception(error)


def _system_lookup(host: str) -> str:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    # Where a name has addresses of both kinds, a server may listen on the older one alone, "localhost" for one.
    return str(min(found, key=lambda each: each[0] != socket.AF_INET)[4][0])


class _PlainConnection(redis.Connection):
    """Looks its host's name up in bounded time; with `sentinels`, of whichever Redis they name at that moment."""

    resolver = Resolver()  # one program talks to one Redis, so its connections share what they know

    def __init__(self, *, sentinels: "Sentinels | None" = None, **options: Any) -> None:
        super().__init__(**options)  # type: ignore[no-untyped-call]  # the library has not annotated it
        self._sentinels = sentinels

    def _connect(self) -> Any:
        if self._sentinels is not None:
            found = self._sentinels.primary()
            self.host, self.port = found.name, found.port
        name, self.host = self.host, self.resolver.address(self.host)
        try:
            return super()._connect()  # type: ignore[no-untyped-call]  # the library has not annotated it
        finally:
            self.host = name


class _EncryptedConnection(redis.SSLConnection, _PlainConnection):
    """The same; by the order of its bases, the certificate is checked against the name, not the address."""


def _client(address: RedisAddress, timeout_s: float, **options: Any) -> redis.Redis:
    """A client with one connection, without retries of the library, which wait up to a minute."""
    pool = redis.ConnectionPool(
        connection_class=_EncryptedConnection if address.encrypted else _PlainConnection,
        username=address.username,
        password=address.password,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
        # Each of these is a round trip more at every connect.
        driver_info=None,
        maint_notifications_config=MaintNotificationsConfig(enabled=False),
        **options,
    )
    return redis.Redis.from_pool(pool)


class Sentinels:
    """Those who say which Redis takes writes. Whoever answered last is asked first."""

    def __init__(self, address: RedisAddress) -> None:
        self._name = address.primary
        self._asked = [
            _client(address, SENTINEL_TIMEOUT_S, host=host.name, port=host.port) for host in address.hosts
        ]

    def primary(self) -> Host:
        """Raises redis.ConnectionError when nobody knows."""
        why = "none was asked"
        for place, sentinel in enumerate(self._asked):
            try:
                found: Any = sentinel.sentinel_get_master_addr_by_name(self._name or "")
            except (redis.RedisError, OSError) as error:
                why = str(error)
                continue
            if found is not None:
                self._asked.insert(0, self._asked.pop(place))
                return Host(found[0].decode(), int(found[1]))
            why = f"no Redis is called {self._name} there"
        raise redis.ConnectionError(f"no Sentinel names the Redis that takes writes: {why}")

    def close(self) -> None:
        for each in self._asked:
            each.close()


class RedisLink:
    """Used from one thread. Every call raises Unavailable, or Damaged when a key holds what we never wrote."""

    def __init__(self, address: RedisAddress, *, now: Callable[[], float] = time.monotonic) -> None:
        self._address = address
        self._now = now
        self._paused_until = 0.0
        self._trouble = ""
        self._sentinels = Sentinels(address) if address.primary is not None else None
        where: dict[str, Any] = {"sentinels": self._sentinels}
        if self._sentinels is None:
            where = {"host": address.hosts[0].name, "port": address.hosts[0].port}
        self._client = _client(address, TIMEOUT_S, db=address.database, **where)

    def __str__(self) -> str:
        return str(self._address)

    def run(self, script: str, keys: Sequence[str], values: Sequence[str | bytes | int | float]) -> Any:
        """Run a script: all of it or nothing of it, with nobody else's command in between."""
        # Sent whole each time: a few hundred bytes, and right again after Redis has been restarted.
        return self._bounded(lambda client: client.eval(script, len(keys), *keys, *values))

    def hold(self) -> None:
        """Wait until what was written so far outlives this Redis; nothing where it is the only one.

        Raises Unavailable when no replica has it in time.
        """
        if self._sentinels is None:
            return
        if self._bounded(lambda client: client.wait(1, HELD_WITHIN_MS)) < 1:
            raise Unavailable(f"{self}: no replica holds the newest lines after {HELD_WITHIN_MS} ms")

    def replicas(self) -> int | None:
        """How many replicas have acknowledged lately; None where this Redis is the only one.

        One that hangs or is cut off stays connected to Redis for a minute, and is not counted meanwhile.
        """
        if self._sentinels is None:
            return None
        seen = self._bounded(lambda client: client.info("replication"))
        if seen.get("role") != "master":
            raise self._turned()
        replicas = [each for key, each in seen.items() if re.fullmatch(r"slave\d+", key)]
        online = [each for each in replicas if each["state"] == "online"]
        return sum(1 for each in online if int(each["lag"]) <= ACKNOWLEDGED_WITHIN_S)

    def ask(self, *command: str | int) -> Any:
        """One command that only reads."""
        return self._bounded(lambda client: client.execute_command(*command))

    def check(self) -> tuple[str, ...]:
        """What is unwise in how this Redis is run, in words. Raises InvalidInput when it must not be used so."""
        facts = self._bounded(lambda client: client.info())
        if not facts.get("aof_enabled"):
            fix = "run this Redis with 'appendonly yes': it would forget"
            raise InvalidInput(Problem("--store", str(self), fix))
        if facts.get("role") == "slave":
            if self._sentinels is not None:  # it was the one until a moment ago
                raise self._turned()
            raise InvalidInput(Problem("--store", str(self), "name the primary: this one is a replica"))
        if facts.get("maxmemory") and facts.get("maxmemory_policy") != "noeviction":
            fix = "run this Redis with 'maxmemory-policy noeviction': it would throw journals away"
            raise InvalidInput(Problem("--store", str(self), fix))
        try:
            fsync = self._bounded(lambda client: client.config_get("appendfsync")).get("appendfsync")
        except HoldfastError:
            return ("whether it writes to its disk at once is Unknown: CONFIG GET appendfsync is not allowed",)
        if fsync == "no":
            return ("appendfsync is no: it may lose half a minute with its machine; set everysec or always",)
        return ()

    def close(self) -> None:
        """Close the connection; a later call opens it again."""
        self._client.close()
        if self._sentinels is not None:
            self._sentinels.close()

    def _bounded(self, send: Callable[[Any], Any]) -> Any:
        if self._now() < self._paused_until:
            raise Unavailable(self._trouble)
        try:
            return send(self._client)
        except redis.AuthenticationError as error:
            raise self._away("it refuses our password; check --store-password-file") from error
        except redis.BusyLoadingError as error:
            raise self._away("it is still loading its data") from error
        except redis.TimeoutError as error:
            raise self._away(f"no answer within {TIMEOUT_S} s") from error
        except (redis.ConnectionError, OSError) as error:  # also for a name that cannot be resolved
            raise self._away(str(error)) from error
        except redis.ReadOnlyError as error:
            raise self._turned() from error
        except redis.OutOfMemoryError as error:
            raise Unavailable(f"{self}: its memory is full") from error
        except NoPermissionError as error:
            raise Unavailable(f"{self}: its access rules refuse us: {error}") from error
        except redis.RedisError as error:
            if "WRONGTYPE" in str(error):
                raise Damaged(f"{self}: a key of ours holds something else: {error}") from error
            raise Unavailable(f"{self}: {error}") from error

    def _turned(self) -> Unavailable:
        """This Redis is a replica. The next call asks anew who takes writes."""
        self._client.connection_pool.disconnect()
        return Unavailable(f"{self}: it is a replica and takes no writes")

    def _away(self, why: str) -> Unavailable:
        self._trouble = f"{self}: {why}"
        self._paused_until = self._now() + PAUSE_S
        return Unavailable(self._trouble)
