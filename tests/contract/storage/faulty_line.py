"""A line to an HTTP server on which requests go wrong as a test says."""

import socket
import threading
from contextlib import suppress
from enum import Enum

_REFUSAL = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Fault(Enum):
    ERROR = "error"  # the server says 500, and has done nothing
    CUT = "cut"  # the connection breaks in the middle of the request
    SILENT = "silent"  # the request is swallowed, and nobody answers
    ANSWER_LOST = "answer lost"  # the server does it, and nobody hears of that


class FaultyLine:
    """Listens on loopback and passes everything on to `port`, but what `fail` names."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._fault = Fault.ERROR
        self._method = b""
        self._left = 0
        self.failed = 0
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def fail(self, fault: Fault, method: str, times: int = 10**9) -> None:
        """The next `times` requests that begin with `method`."""
        with self._lock:
            self._fault, self._method, self._left = fault, method.encode(), times

    def heal(self) -> None:
        with self._lock:
            self._left = 0

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        """Requests of one connection come one after the other."""
        with suppress(OSError), client, socket.create_connection(("127.0.0.1", self._target)) as server:
            lost = threading.Event()
            threading.Thread(target=self._answer, args=(server, client, lost), daemon=True).start()
            while data := client.recv(65536):
                fault = self._meets(data)
                if fault is Fault.ERROR:
                    client.sendall(_REFUSAL)
                    return
                if fault is Fault.SILENT:
                    while client.recv(65536):  # Until who asked has given up.
                        continue
                    return
                if fault is Fault.CUT:
                    server.sendall(data[: len(data) // 2])
                    return
                if fault is Fault.ANSWER_LOST:
                    lost.set()
                server.sendall(data)

    def _meets(self, data: bytes) -> Fault | None:
        with self._lock:
            if not self._left or not data.startswith(self._method):
                return None
            self._left -= 1
            self.failed += 1
            return self._fault

    def _answer(self, server: socket.socket, client: socket.socket, lost: threading.Event) -> None:
        with suppress(OSError):
            while (data := server.recv(65536)) and not lost.is_set():
                client.sendall(data)
            client.shutdown(socket.SHUT_RDWR)
