"""Makes a worker wait for its group's store in milliseconds instead of half seconds.

Workers of a round start together, so most of them look for the store some milliseconds before rank 0 listens.
torch's client then sleeps about half a second before it tries again (measured: 0.29 to 0.55 s for a store that
was 10 to 100 ms late), which would be most of the time a recovery takes. Here a client first knocks, every few
milliseconds, until somebody listens; what a knock leaves at the store is a connection that closes at once.
"""

import datetime
import socket
import struct
import sys
import time
from typing import Any

_FIRST_INTERVAL_S = 0.001
_INTERVAL_S_MAX = 0.02  # bounds what thousands of waiting ranks ask of rank 0's host
_KNOCK_TIMEOUT_S = 1.0
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # struct linger: on, zero seconds


def make_stores_wait() -> None:
    """Change how `init_process_group` makes a client of the store, in this process only."""
    rendezvous: Any = sys.modules.get("torch.distributed.rendezvous")
    if rendezvous is None:
        return
    make_store = rendezvous.TCPStore

    def make_waiting_store(**given: Any) -> Any:
        if not given["is_master"]:
            timeout: datetime.timedelta = given["timeout"]
            wait_for_listener(given["host_name"], given["port"], timeout_s=timeout.total_seconds())
        return make_store(**given)

    rendezvous.TCPStore = make_waiting_store


def wait_for_listener(host: str, port: int, *, timeout_s: float) -> None:
    """Return once somebody listens there, or when waiting is of no use: torch's own attempt says why then."""
    give_up = time.monotonic() + timeout_s
    interval_s = _FIRST_INTERVAL_S
    while time.monotonic() < give_up:
        try:
            if _is_answered(host, port):
                return
        except OSError:
            return
        time.sleep(interval_s)
        interval_s = min(1.5 * interval_s, _INTERVAL_S_MAX)


def _is_answered(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), _KNOCK_TIMEOUT_S) as knock:
            if knock.getsockname() != knock.getpeername():
                return True
            # Nobody listens, but the kernel gave the knock the very port it knocks at, so it met itself. A reset
            # leaves nothing behind that would keep rank 0 from listening there.
            knock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    except (ConnectionRefusedError, TimeoutError):
        return False
    return False
