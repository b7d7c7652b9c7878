"""What the launcher says to the watchdog and hears of it.

Training goes on while the watchdog is away. After every reconnect the launcher joins again and repeats what the
watchdog may have missed (`Outbox`).
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable
from typing import Final, NoReturn

import msgspec

from holdfast.agent.launch.outbox import Outbox
from holdfast.api.membership import Beat, FromLauncher, Join, Leave, Refused, RoundWord, ToLauncher
from holdfast.api.profile import ProfileWanted
from holdfast.api.round import Shown
from holdfast.api.selftest import TestWanted
from holdfast.api.stacks import StacksWanted
from holdfast.api.workeroutput import WorkerOutput
from holdfast.wire.access import Access
from holdfast.wire.line import Line, Manner, TurnedAway

log = logging.getLogger(__name__)

_LEAVE_TIMEOUT_S: Final = 1.0
_UNSENT_MAX: Final = 1024  # messages; past this the connection is made anew and the outbox repeated

MANNER: Final = Manner(
    client="launcher",
    retry_first_s=0.05,
    retry_most_s=1.0,
    steady_s=1.0,
    ping_s=4.0,  # a watchdog whose machine vanished is noticed half as much later; it judges by beats
    frame_bytes_max=1 << 20,  # a seat takes less than 1 KiB, and more with a long reason
    # Training goes on with a token that was good before. The kubelet renews a token after 80% of its life, so one
    # that is refused is rarely old: it is those who review tokens that are in trouble, and they may recover.
    # Source: https://kubernetes.io/docs/tasks/configure-pod-container/configure-service-account/
    refused_s=60.0,
)


class Connection:
    """Speaks for one member. `join` is asked for the member's state at every (re)connect."""

    def __init__(
        self,
        access: Access,
        *,
        job: str,
        heartbeat_interval_s: float,
        join: Callable[[], Join],
        on_shown: Callable[[Shown | RoundWord | TestWanted | StacksWanted | ProfileWanted], None],
    ) -> None:
        self._line = Line(access, "/v1/member", self, msgspec.msgpack.Decoder(ToLauncher), MANNER, job)
        self._heartbeat_interval_s = heartbeat_interval_s
        self._join = join
        self._on_shown = on_shown
        self._outbox = Outbox()
        self._unsent: asyncio.Queue[FromLauncher | None] | None = None
        self._lost_at: float | None = None

    async def run(self) -> NoReturn:
        """Stay connected until cancelled.

        Raises TurnedAway when the watchdog refuses the member, or the token for longer than can be waited for.
        """
        await self._line.run()

    def report(self, message: FromLauncher) -> None:
        """Send at once when connected; what lasts is repeated after a reconnect."""
        self._outbox.keep(message, time.monotonic())
        if isinstance(message, WorkerOutput) and self._unsent is None:
            self._outbox.hold(message)
        self._send(message)

    async def leave(self, reason: str) -> None:
        """Say goodbye, if there is a connection to say it on; call before cancelling `run`."""
        self._send(Leave(reason))
        await self.flush()

    async def flush(self) -> None:
        """Wait a moment until what was reported is sent, if there is a connection to send it on."""
        if self._unsent is None:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._unsent.join(), _LEAVE_TIMEOUT_S)

    async def speech(self) -> AsyncGenerator[FromLauncher, None]:
        """The member's state, what is repeated, then all that is reported; ends when too much is unsent."""

        async def beat() -> None:
            while True:
                await asyncio.sleep(self._heartbeat_interval_s)
                self._send(Beat())

        unsent = self._unsent = asyncio.Queue(_UNSENT_MAX)
        self._send(self._join())
        again = () if self._lost_at is None else self._outbox.logged_since(self._lost_at)
        for message in (*self._outbox.messages(time.monotonic()), *self._outbox.held(), *again):
            self._send(message)
        beating = asyncio.create_task(beat())
        try:
            while (next_ := await unsent.get()) is not None:
                yield next_
                unsent.task_done()
        finally:
            self._unsent, self._lost_at = None, time.monotonic()
            beating.cancel()

    def _send(self, message: FromLauncher) -> None:
        if self._unsent is None:
            return
        if self._unsent.full():
            log.warning("the watchdog takes no messages unsent=%d", self._unsent.qsize())
            self._unsent.get_nowait()
            self._unsent.put_nowait(None)
            self._unsent = None
            return
        self._unsent.put_nowait(message)

    def hear(self, shown: ToLauncher) -> None:
        """What the member is shown. Raises TurnedAway."""
        if isinstance(shown, Refused):
            raise TurnedAway(f"the watchdog refused this launcher: {shown.reason}")
        if isinstance(shown, Shown):  # the numbers of the others are no rounds
            self._outbox.advance(shown.number)
        self._on_shown(shown)

    def lost(self) -> None:
        """Training goes on."""
