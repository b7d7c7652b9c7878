"""Names of hosts, looked up without ever waiting long: the system's own look-up may take half a minute.

A look-up runs in a thread of its own and is waited for shortly. While it takes longer, the last address serves.
"""

import socket
import threading
from collections.abc import Callable

# A cluster's name service answers in a few milliseconds; this is silence.
WAIT_S = 0.25
# With an address at hand there is less reason to wait.
WAIT_KNOWN_S = 0.05


class Resolver:
    """Used from one thread. `lookup` gives an address or raises OSError."""

    def __init__(self, lookup: Callable[[str], str] | None = None) -> None:
        self._lookup = lookup or _system_lookup
        self._known: dict[str, str] = {}
        self._asked: dict[str, _Question] = {}

    def address(self, host: str) -> str:
        """An address of the host. Raises OSError when there is none, or none was found in time."""
        question = self._asked.get(host)
        if question is None:
            question = self._asked[host] = _Question(self._lookup, host)
        known = self._known.get(host)
        if not question.answered.wait(WAIT_S if known is None else WAIT_KNOWN_S):
            if known is None:
                raise OSError(f"the name {host} could not be looked up within {WAIT_S} s")
            return known
        del self._asked[host]
        if question.found is None:
            if known is not None:
                return known  # the name service is away, which says nothing about the host
            raise OSError(f"the name {host} is not known: {question.error}")
        self._known[host] = question.found
        return question.found


class _Question:
    """One look-up on its way. Its thread ends with it, and keeps no program from ending."""

    def __init__(self, lookup: Callable[[str], str], host: str) -> None:
        self.answered = threading.Event()
        self.found: str | None = None
        self.error: OSError | None = None
        self._lookup = lookup
        self._host = host
        threading.Thread(target=self._ask, name=f"look-up of {host}", daemon=True).start()

    def _ask(self) -> None:
        try:
            self.found = self._lookup(self._host)
        except OSError as error:
            self.error = error
        finally:
            self.answered.set()


def _system_lookup(host: str) -> str:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    # Where a name has addresses of both kinds, a server may listen on the older one alone, "localhost" for one.
    return str(min(found, key=lambda each: each[0] != socket.AF_INET)[4][0])
