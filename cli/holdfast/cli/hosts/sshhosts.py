"""Machines that ssh reaches, as hosts. Nobody says anything of them but themselves."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.api.errors import InvalidInput, Problem
from holdfast.cli.hosts.reach import Standing

# No password can be asked for; a peer that is silent for 15 s is gone. Source: https://man.openbsd.org/ssh_config
OPTIONS: Final = (
    *("-o", "BatchMode=yes", "-o", "ConnectTimeout=10"),
    *("-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3"),
)
_HOST: Final = re.compile(r"(?!-)[A-Za-z0-9_.:@\[\]-]{1,255}")


@dataclass(frozen=True, slots=True)
class SshHosts:
    """Fills `Reach`. `ssh` is the program and the flags it is called with, before those that are always given."""

    ssh: tuple[str, ...] = ("ssh",)

    def command(self, host: str, program: Sequence[str]) -> tuple[str, ...]:
        """Its login shell is given one word line. No terminal: an end of the input is how the far end knows."""
        return (*self.ssh, *OPTIONS, "-T", host, f"exec {shlex.join(program)}")

    async def standings(self) -> Mapping[str, Standing]:
        return {}

    async def take_out(self, host: str, reason: str) -> str | None:
        return f"{host} is not used any more: {reason}; `holdfast return {host}` takes it back"

    async def put_back(self, host: str) -> str | None:
        return None

    async def given_again(self) -> Sequence[str]:
        return ()


def hosts_from(text: str) -> tuple[str, ...]:
    """Names as ssh takes them, separated by commas. Raises InvalidInput."""
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if not _HOST.fullmatch(name):
            raise InvalidInput(Problem("--hosts", name, "give names or addresses as ssh takes them: a,b,user@c"))
    if len(set(names)) < len(names):
        raise InvalidInput(Problem("--hosts", text, "give each machine once"))
    return names
