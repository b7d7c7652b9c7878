"""How a launcher's run ended."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """The last failure of one rank. `exit_code` is negative for a signal, as in `subprocess`.

    `error` is the tail of its output that a human wants to read.
    """

    local_rank: int
    pid: int
    exit_code: int
    error_file: Path
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """`signal` is set when a signal ended the launcher; `failures` are by global rank."""

    succeeded: bool
    reason: str
    signal: int | None = None
    failures: Mapping[int, WorkerFailure] = field(default_factory=dict)

    @property
    def exit_status(self) -> int:
        """What the launcher's process ends with; a signal shows as a shell shows it."""
        if self.signal is not None:
            return 128 + self.signal
        return 0 if self.succeeded else 1
