"""The watchdog program's settings: built once in `main`, checked, passed down."""

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from holdfast.api.errors import InvalidInput, Problem

STATE_FILE_NAME = "watchdog.json"


@dataclass(frozen=True)
class ListenAddress:
    """Where to listen. Port 0 takes any free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "ListenAddress":
        """From HOST:PORT. Raises InvalidInput; only loopback is accepted, because traffic is not encrypted."""
        host, _, port = text.rpartition(":")
        host = host.strip("[]")
        try:
            loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
        except ValueError:
            loopback = False
        if not loopback:
            raise InvalidInput(Problem("--listen", text, "give a loopback address, such as 127.0.0.1:7077"))
        if not port.isdecimal() or int(port) > 65535:
            raise InvalidInput(Problem("--listen", text, "give a port from 0 (any free one) to 65535"))
        return cls(host, int(port))


@dataclass(frozen=True)
class WatchdogSettings:
    """Everything the program is told.

    `listen`: any free port unless told, so that two runs on a machine never collide.
    `store`: the SQLite file; made when it is not there.
    `token_file`: mode 0600; made with a random token when it is not there.
    """

    listen: ListenAddress
    store: Path
    token_file: Path

    @property
    def state_file(self) -> Path:
        """Where others read the address: beside the store."""
        return self.store.parent / STATE_FILE_NAME
