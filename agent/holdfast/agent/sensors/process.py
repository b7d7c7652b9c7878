"""What the kernel says of one process."""

import contextlib
import os
from typing import Final

from holdfast.api.telemetry import ProcessState

_STAT_BYTES: Final = 512  # the state letter stands right after the name, which the kernel cuts to 64 bytes

# Source: proc_pid_stat(5), field 3, https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
# A zombie runs no more instruction, so it is gone for everybody who waits for its next step.
_STATES: Final = {
    "R": ProcessState.RUNNING,
    "S": ProcessState.RUNNING,
    "I": ProcessState.RUNNING,
    "D": ProcessState.BLOCKED,
    "T": ProcessState.STOPPED,
    "t": ProcessState.STOPPED,
    "Z": ProcessState.GONE,
    "X": ProcessState.GONE,
    "x": ProcessState.GONE,
}


def parse_state(stat: bytes) -> ProcessState:
    """The state in the text of /proc/PID/stat; UNKNOWN when the text is none.

    The name before the state is the process's own choice and may hold spaces and parentheses, so the state is
    looked for after the last closing parenthesis.
    """
    _, parenthesis, rest = stat.rpartition(b")")
    letter = rest[1:2].decode("ascii", "replace")
    return _STATES.get(letter, ProcessState.UNKNOWN) if parenthesis else ProcessState.UNKNOWN


class WatchedProcess:
    """One process, followed through an open /proc/PID/stat.

    The open file belongs to the process and not to its number: once the process has died it says so, even when
    the number was given to another process in the meantime.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._file: int | None = None
        with contextlib.suppress(OSError):
            self._file = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)

    def state(self) -> ProcessState:
        """The process's state now."""
        if self._file is None:
            return _state_of_hidden(self.pid)
        try:
            return parse_state(os.pread(self._file, _STAT_BYTES, 0))
        except ProcessLookupError:
            return ProcessState.GONE
        except OSError:
            return ProcessState.UNKNOWN

    def close(self) -> None:
        """Stop following."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _state_of_hidden(pid: int) -> ProcessState:
    """GONE or UNKNOWN for a process that /proc does not show: it may be hidden (hidepid) instead of dead."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ProcessState.GONE
    except OSError:
        pass  # not ours to signal, so it is there
    return ProcessState.UNKNOWN
