"""A real Redis of a test's own."""

from collections.abc import Sequence
from pathlib import Path

import redis
from debian_packages import packaged_program
from patience import patient
from server_process import ServerProcess, free_port

READY_S_MAX = patient(20.0)


class RedisServer:
    """Keeps what it was told: the append-only file is on and written on every command.

    `stop`, `kill` and `restart` leave the folder and the port as they were. `more`: further settings.
    """

    def __init__(self, folder: Path, password: str = "", more: Sequence[str] = ()):
        self.port = free_port()
        self.folder = folder
        self.password = password
        command: list[str | Path] = [
            packaged_program("redis-server"),
            "--bind",
            "127.0.0.1",
            "--port",
            str(self.port),
        ]
        command += ["--dir", folder, "--appendonly", "yes", "--appendfsync", "always", "--save", ""]
        command += ["--requirepass", password] if password else []
        command += more
        self.process = ServerProcess("redis-server", command, folder / "redis.log")

    @property
    def url(self) -> str:
        login = f":{self.password}@" if self.password else ""
        return f"redis://{login}127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Returns when it answers, its data loaded."""
        self.process.start()
        self.process.wait_until(self.answers, READY_S_MAX)

    def stop(self) -> None:
        self.process.stop()

    def kill(self) -> None:
        self.process.kill()

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        """Connections stay open and nothing answers, until `resume`."""
        self.process.pause()

    def resume(self) -> None:
        self.process.resume()

    def answers(self) -> bool:
        with redis.Redis.from_url(self.url, socket_timeout=2.0) as client:
            try:
                return bool(client.ping())
            except (redis.ConnectionError, redis.TimeoutError):  # BusyLoadingError is a ConnectionError
                return False
