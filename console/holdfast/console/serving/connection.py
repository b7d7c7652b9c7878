"""One connection, with limits in time: a request comes whole within seconds, and an answer is taken.

uvicorn alone waits for ever on who has connected and says nothing, or takes nothing of an answer. A few thousand
idle connections, without any token, would keep everybody out.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S: Final = 30.0
# The largest document, over the worst line, is taken in less.
UNTAKEN_S: Final = 120.0
_UNFINISHED: Final = (h11.IDLE, h11.SEND_BODY)


class Connection(H11Protocol):
    """As uvicorn's own, and ended where the other side keeps it waiting."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._request, self._taking = _Limit(self.loop, REQUEST_S), _Limit(self.loop, UNTAKEN_S)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_request()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._wait_for_request()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._taking.begin(self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._taking.end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._request.end()
        self._taking.end()
        super().connection_lost(exc)

    def _wait_for_request(self) -> None:
        """Until all of it is there, however slowly it comes in pieces."""
        if self.conn.their_state in _UNFINISHED:
            self._request.begin(self.transport.abort)
        else:
            self._request.end()


class _Limit:
    """Calls what is given at its beginning, unless it ends within `seconds`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._loop = loop
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, then: Callable[[], object]) -> None:
        """Nothing where it has begun."""
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, then)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
