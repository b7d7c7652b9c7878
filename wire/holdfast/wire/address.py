"""Where something listens or is to be reached: HOST:PORT."""

import ipaddress
import re
from dataclasses import dataclass
from typing import Final, Self

from holdfast.api.errors import InvalidInput, Problem

_BRACKETED: Final = re.compile(r"\[(?P<host>[^\]]*)\]")
_NAME: Final = re.compile(r"[^\s:/@\[\]]+")  # also of IP version 4


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a TCP port. `host` is bare, also that of IP version 6, which stands in brackets as text."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, *, given_by: str, fix: str = "give it as HOST:PORT", port_min: int = 1) -> Self:
        """`given_by` names the flag, `fix` what to write there; `port_min` 0 is for who listens on any free port.

        Raises InvalidInput.
        """
        host, _, port = text.rpartition(":")
        bracketed = _BRACKETED.fullmatch(host)
        if bracketed is not None:
            host = bracketed["host"]
        is_host = _NAME.fullmatch(host) is not None if bracketed is None else _is_ipv6(host)
        is_port = port.isascii() and port.isdecimal() and port_min <= int(port) <= 65535
        if not is_host or not is_port:
            raise InvalidInput(Problem(given_by, text, fix))
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False
