"""A line to a server that loses what a test tells it to lose."""

import socket
import threading
from contextlib import suppress
from enum import Enum


class Loss(Enum):
    """What the line does with what comes along it from now on."""

    NOTHING = "nothing"
    ANSWERS = "answers"  # the server does what it was asked; nobody hears of it
    REQUESTS_HELD = "requests held"  # they wait on the line until `let_go`


class LossyLine:
    """Listens on loopback and passes everything on to `port`, unless told otherwise."""

    def __init__(self, port: int) -> None:
        self.loss = Loss.NOTHING
        self._target = port
        self._held: list[tuple[socket.socket, bytes]] = []
        self._answered = threading.Event()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def let_go(self) -> None:
        """Let the held requests through, and wait for the server to have answered each."""
        held, self._held = self._held, []
        for server, request in held:
            self._answered.clear()
            server.sendall(request)
            assert self._answered.wait(5.0), "the server did not answer the request that was held"

    def close(self) -> None:
        for each in (self._listener, *self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [client, server]
                for pump in (self._requests, self._answers):
                    threading.Thread(target=pump, args=(client, server), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                if self.loss is Loss.REQUESTS_HELD:
                    self._held.append((server, data))
                else:
                    server.sendall(data)

    def _answers(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                self._answered.set()
                if self.loss is not Loss.ANSWERS:
                    with suppress(OSError):  # it has given up by now
                        client.sendall(data)
