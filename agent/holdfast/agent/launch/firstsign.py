"""The first sign of training of a worker whose script publishes nothing, seen from outside its process.

Importing and compiling take 18 to 60 s on a shared file system; a worker that dies in them has not trained, one
that dies afterwards has. What can be seen without changing the script:

- *a collective is near*: a socket of the process, or of one it started, is connected to the round's store or
  listens there. `init_process_group` opens it before anything else, and after the script's imports.
- *output*: the log has grown in `OUTPUT_LOOKS` looks in a row, a second apart. Warnings of imports come in bursts.

A script that does neither shows no sign, and is judged by how long it runs.
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

LOOK_INTERVAL_S = 1.0
OUTPUT_LOOKS = 5
# Source: the columns and states of /proc/net/tcp, https://docs.kernel.org/networking/proc_net_tcp.html
_ESTABLISHED, _LISTEN = "01", "0A"
_SOCKET = re.compile(r"socket:\[(\d+)\]")
_DESCENDANTS_MAX = 64


@dataclass(slots=True)
class _Watched:
    port: int
    log: Path
    size: int
    growths: int = 0


class FirstSigns:
    """Looks at worker processes until each has shown its first sign. `on_sign` is told the process id, once."""

    def __init__(self, on_sign: Callable[[int], None], *, proc: Path = Path("/proc")) -> None:
        self._on_sign = on_sign
        self._proc = proc
        self._watched: dict[int, _Watched] = {}

    def watch(self, pid: int, *, port: int, log: Path, offset: int) -> None:
        """Look at process `pid`, which writes to `log` from `offset` on; `port` is that of the round's store."""
        self._watched[pid] = _Watched(port, log, offset)

    def forget(self, pid: int) -> None:
        """The process is gone, or speaks for itself."""
        self._watched.pop(pid, None)

    def look(self) -> None:
        """Look at each once; called every `LOOK_INTERVAL_S`."""
        for pid, watched in tuple(self._watched.items()):
            with contextlib.suppress(OSError):
                size = watched.log.stat().st_size
                watched.growths = watched.growths + 1 if size > watched.size else 0
                watched.size = size
            if watched.growths >= OUTPUT_LOOKS or self._meets_at_the_store(pid, watched.port):
                self.forget(pid)
                self._on_sign(pid)

    def _meets_at_the_store(self, pid: int, port: int) -> bool:
        """Whether it, or what it started, has a socket that is connected to `port`, or listens there."""
        meeting, wanted = set(), f":{port:04X}"
        for table in ("tcp", "tcp6"):
            with contextlib.suppress(OSError):
                for line in (self._proc / str(pid) / "net" / table).read_text().splitlines()[1:]:
                    fields = line.split()
                    local, remote, state = fields[1:4]
                    connected = state == _ESTABLISHED and remote.endswith(wanted)
                    if connected or (state == _LISTEN and local.endswith(wanted)):
                        meeting.add(fields[9])  # its inode
        return bool(meeting) and any(meeting & self._sockets_of(each) for each in self._family(pid))

    def _sockets_of(self, pid: int) -> set[str]:
        found = set()
        with contextlib.suppress(OSError):
            for entry in os.scandir(self._proc / str(pid) / "fd"):
                with contextlib.suppress(OSError):
                    if (match := _SOCKET.fullmatch(os.readlink(entry.path))) is not None:
                        found.add(match[1])
        return found

    def _family(self, pid: int) -> Iterator[int]:
        """The process and what it has started: an entry point that is a program starts Python itself."""
        waiting = [pid]
        for _ in range(_DESCENDANTS_MAX):
            if not waiting:
                return
            each = waiting.pop(0)
            yield each
            with contextlib.suppress(OSError):
                children = (self._proc / str(each) / "task" / str(each) / "children").read_text()
                waiting += [int(child) for child in children.split()]
