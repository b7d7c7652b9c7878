"""A line to a server that loses what a test tells it to lose."""

import socket
import threading
from contextlib import suppress
from enum import Enum

from patience import patient

PATIENCE_S = patient(15.0)


class Loss(Enum):
    """What the line does with what comes along it from now on."""

    NOTHING = "nothing"
    ANSWERS = "answers"  # the server does what it was asked; nobody hears of it
    REQUESTS_HELD = "requests held"  # they wait on the line until `let_go`


class LossyLine:
    """Listens on loopback and passes everything on to `port`, unless told otherwise."""

    def __init__(self, port: int) -> None:
        self._loss = Loss.NOTHING
        self._lost = threading.Event()
        self._target = port
        self._held: list[tuple[socket.socket, bytes]] = []
        self._answered = threading.Event()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def loss(self) -> Loss:
        """What is lost from now on. Told to lose nothing more, it waits until it has lost what it was told to:
        whoever asked may have given up before the line got to it.
        """
        return self._loss

    @loss.setter
    def loss(self, loss: Loss) -> None:
        if self._loss is not Loss.NOTHING and loss is Loss.NOTHING:
            assert self._lost.wait(PATIENCE_S), f"no {self._loss.value} came along the line"
        self._lost.clear()
        self._loss = loss

    def let_go(self) -> None:
        """Let the held requests through, and wait for the server to have answered each."""
        held, self._held = self._held, []
        for server, request in held:
            self._answered.clear()
            server.sendall(request)
            assert self._answered.wait(PATIENCE_S), "the server did not answer the request that was held"

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
                    self._lost.set()
                else:
                    server.sendall(data)

    def _answers(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                self._answered.set()
                if self.loss is Loss.ANSWERS:
                    self._lost.set()
                    continue
                with suppress(OSError):  # it has given up by now
                    client.sendall(data)
