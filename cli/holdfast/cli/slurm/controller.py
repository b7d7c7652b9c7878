"""What is asked of Slurm's controller, by its own commands. Their words are decoded here and nowhere else."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.api.errors import HoldfastError, Unavailable
from holdfast.api.plan import NodeState
from holdfast.cli.hosts.reach import Standing

WITHIN_S: Final = 30.0  # a busy controller takes seconds
OF_HOLDFAST: Final = "holdfast: "
"""How every reason begins that Holdfast drains a node with."""
REASON_LENGTH_MAX: Final = 200
_GONE: Final = ("down", "fail", "failing", "powered_down", "powering_down", "reboot", "unknown", "future")
_DRAINING: Final = ("drained", "draining", "drng", "drain")


class Refused(HoldfastError):
    """Slurm was asked and said no: most often it is not this user's right."""


@dataclass(frozen=True, slots=True)
class NodeLine:
    """One node as sinfo tells it. `state` is sinfo's long word, with its mark for one that does not answer."""

    name: str
    state: str
    address: str
    reason: str

    @property
    def is_drained_by_holdfast(self) -> bool:
        """Whether its reason is one of ours."""
        return self.reason.startswith(OF_HOLDFAST)

    @property
    def standing(self) -> Standing:
        """What the watchdog is told. One that Holdfast drained itself is fine as far as Slurm goes."""
        word = self.state.rstrip("*~#!%$@^-+").lower()
        answers = "*" not in self.state
        if word in _GONE:
            return Standing(NodeState.GONE, f"Slurm says {self.state}: {self.reason}")
        if not answers:
            return Standing(NodeState.NOT_READY, f"Slurm says {self.state}: it does not answer")
        if word in _DRAINING and not self.is_drained_by_holdfast:
            return Standing(NodeState.DRAINING, f"Slurm says {self.state}: {self.reason}")
        return Standing(NodeState.READY)


def node_lines(told: str) -> Mapping[str, NodeLine]:
    """What `sinfo -h -N -o %N|%T|%o|%E` wrote. A node of several partitions is on several lines, alike."""
    nodes = {}
    for line in told.splitlines():
        name, bar, rest = line.strip().partition("|")
        parts = rest.split("|", 2)
        if bar and len(parts) == 3:
            nodes[name] = NodeLine(name, *parts)
    return nodes


def reason_text(reason: str) -> str:
    """A reason in one line, short enough for a column of sinfo -R, and marked as ours."""
    words = " ".join(f"{OF_HOLDFAST}{reason}".split())
    return words if len(words) <= REASON_LENGTH_MAX else words[: REASON_LENGTH_MAX - 3] + "..."


async def ask(*command: str) -> str:
    """What a command of Slurm's wrote. Raises Refused when it failed, Unavailable when it does not answer."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise Unavailable(
            f"{command[0]} cannot be run: {error.strerror}; is this a machine of Slurm's?"
        ) from error
    try:
        async with asyncio.timeout(WITHIN_S):
            said, complained = await process.communicate()
    except TimeoutError as error:
        process.kill()
        await process.wait()
        raise Unavailable(f"{command[0]} did not answer within {WITHIN_S:.0f} s") from error
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode:
        raise Refused(f"{command[0]} says: {' '.join(complained.decode(errors='replace').split())}")
    return said.decode(errors="replace")


async def hosts_of(nodelist: str) -> tuple[str, ...]:
    """The names that a list such as node[1-3,7] stands for. Raises Refused, Unavailable."""
    return tuple((await ask("scontrol", "show", "hostnames", nodelist)).split())


async def time_left_s(job_id: str) -> float | None:
    """Seconds until the job's time limit; None where it has none. Raises Refused, Unavailable."""
    return seconds_of(await ask("squeue", "--noheader", f"--jobs={job_id}", "--format=%L"))


def seconds_of(told: str) -> float | None:
    """A time as squeue writes it, [days-][[hours:]minutes:]seconds; None for a word such as UNLIMITED."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(?:(\d+):)?(\d+):)?(\d+)", told.strip())
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


async def nodes(names: Sequence[str]) -> Mapping[str, NodeLine]:
    """Those nodes now. Raises Refused, Unavailable."""
    return node_lines(
        await ask("sinfo", "--noheader", "--Node", f"--nodes={','.join(names)}", "--format=%N|%T|%o|%E")
    )
