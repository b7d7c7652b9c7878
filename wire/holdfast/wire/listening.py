"""Where a server listens: a socket that is bound before anything else is touched, and a file that tells others."""

import errno
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.api.errors import Unavailable


def listener(host: str, port: int, backlog: int) -> socket.socket:
    """A socket that listens, for a server with a flag --listen. Raises Unavailable, and leaves no trace then."""
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.settimeout(0)
    try:
        made.bind((host, port))
        # Two sockets may be bound to a port while neither listens; the second listen is what fails.
        made.listen(backlog)
    except OSError as error:
        made.close()
        where = f"[{host}]" if ":" in host else host
        why = f"cannot listen on {where}:{port}: {error.strerror}"
        if error.errno == errno.EADDRINUSE:
            why = f"port {port} on {host} is taken; give another one with --listen"
        raise Unavailable(why) from error
    return made


@contextmanager
def told_in(path: Path | None, host: str, port: int) -> Iterator[None]:
    """Tell others in `path` where we are, whole or not at all, as long as the block runs. Raises Unavailable."""
    if path is None:
        yield
        return
    fresh = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        fresh.write_text(json.dumps({"host": host, "port": port, "pid": os.getpid()}) + "\n", encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        raise Unavailable(f"{path} cannot be written: {error.strerror}") from error
    try:
        yield
    finally:
        with suppress(OSError, ValueError):
            # Another server may have put its own there.
            if json.loads(path.read_text(encoding="utf-8")).get("pid") == os.getpid():
                path.unlink()
