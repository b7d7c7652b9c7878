"""A Redis with replicas, and the Sentinels that watch over it, of a test's own."""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import redis
from debian_packages import packaged_program
from patience import patient
from redis_server import RedisServer
from server_process import ServerProcess, free_port

NAME = "holdfast"
DOWN_AFTER_MS = 1000
FAILS_OVER_WITHIN_S = patient(20.0)
SENTINEL = """\
port {port}
bind 127.0.0.1
dir {folder}
sentinel monitor {name} 127.0.0.1 {primary} 2
sentinel down-after-milliseconds {name} {down_after_ms}
sentinel failover-timeout {name} 5000
"""


class RedisWithSentinels:
    """`with RedisWithSentinels(folder) as redis`: three of each, every replica in step with the primary.

    A Redis takes no writes while no replica keeps up, as the chart's does not.
    """

    def __init__(self, folder: Path):
        self.servers = [self._server(folder, number) for number in range(3)]
        self.sentinels: list[ServerProcess] = []
        self.ports = [free_port() for _ in range(3)]
        self._folder = folder

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        return f"redis+sentinel://{hosts}/{NAME}"

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for each in (*self.sentinels, *(server.process for server in self.servers)):
            each.stop()

    def primary(self) -> RedisServer:
        """The one that the first Sentinel that lives names."""
        for port, sentinel in zip(self.ports, self.sentinels, strict=True):
            if sentinel.running:
                with redis.Redis(port=port, socket_timeout=patient(2.0)) as client:
                    found = client.sentinel_get_master_addr_by_name(NAME)
                return next(each for each in self.servers if each.port == found[1])
        raise LookupError("no Sentinel lives")

    def replicas(self) -> Sequence[RedisServer]:
        primary = self.primary()
        return [each for each in self.servers if each is not primary]

    def wait_for_another(self, than: RedisServer) -> RedisServer:
        """The next primary, once the Sentinels have chosen it."""
        self.sentinels[0].wait_until(lambda: self.primary() is not than, FAILS_OVER_WITHIN_S)
        return self.primary()

    def _server(self, folder: Path, number: int) -> RedisServer:
        own = folder / f"redis-{number}"
        own.mkdir()
        more = ("--min-replicas-to-write", "1", "--min-replicas-max-lag", "2", "--repl-diskless-sync-delay", "0")
        return RedisServer(own, more=more)

    def _start(self) -> None:
        first, *others = self.servers
        for server in self.servers:
            server.start()
        for server in others:
            with redis.Redis.from_url(server.url) as client:
                client.replicaof("127.0.0.1", first.port)
        for number, port in enumerate(self.ports):
            own = self._folder / f"sentinel-{number}"
            own.mkdir()
            settings = own / "sentinel.conf"
            settings.write_text(
                SENTINEL.format(port=port, folder=own, name=NAME, primary=first.port, down_after_ms=DOWN_AFTER_MS)
            )
            command = [packaged_program("redis-server"), settings, "--sentinel"]
            self.sentinels.append(ServerProcess(f"sentinel-{number}", command, own / "log.txt"))
            self.sentinels[-1].start()
        for sentinel, port in zip(self.sentinels, self.ports, strict=True):
            sentinel.wait_until(lambda port=port: self._is_whole(port), FAILS_OVER_WITHIN_S)

    def _is_whole(self, port: int) -> bool:
        """Whether this Sentinel knows the other two and both replicas, which keep up."""
        try:
            with redis.Redis(port=port, socket_timeout=patient(2.0)) as client:
                seen = client.sentinel_master(NAME)
            with redis.Redis.from_url(self.servers[0].url) as client:
                in_step = client.info("replication").get("min_slaves_good_slaves", 0)
        except (redis.ConnectionError, redis.TimeoutError):
            return False
        return (seen["num-other-sentinels"], seen["num-slaves"], in_step) == (2, 2, 2)
