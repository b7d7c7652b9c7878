"""Connections that say nothing, many more than the server under test may have files open."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

FILES = 128
STRANGERS = 200


def with_few_files(command: Sequence[str]) -> list[str]:
    """The command, with a limit of `FILES` open files, soft and hard."""
    return ["sh", "-c", 'ulimit -n "$0" && exec "$@"', str(FILES), *command]


@contextmanager
def silent_strangers(port: int) -> Iterator[list[socket.socket]]:
    """`STRANGERS` connections to a port of this machine, in the order in which they were made."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20.0))
            for _ in range(STRANGERS)
        ]
