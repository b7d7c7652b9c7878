"""Keeps the ledger of an embedded run beside its checkpoints, where it outlives the state directory."""

import asyncio
from collections.abc import Callable
from typing import Final, NoReturn

from holdfast.api.errors import HoldfastError
from holdfast.cli.embedded.watchdog import WatchdogLink
from holdfast.cli.ledgerfile import write_ledger

EVERY_S: Final = 60.0


class LedgerWriter:
    """Writes it now and then, and when the run ends. That a place takes none is told once, and ends no run."""

    def __init__(self, link: WatchdogLink, uri: str, say: Callable[[str], None]) -> None:
        self._link = link
        self._uri = uri
        self._say = say
        self._trouble = ""

    async def keep_writing(self) -> NoReturn:
        """Write it once a minute."""
        while True:
            await asyncio.sleep(EVERY_S)
            await self.write()

    async def write(self) -> None:
        """Write it once, as it is now."""
        if not self._uri:
            return
        try:
            report = await self._link.ledger()
            if report is not None:
                await asyncio.to_thread(write_ledger, self._uri, report)
        except HoldfastError as error:
            self._told(str(error))

    def _told(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            self._say(f"the ledger is not written beside the checkpoints: {trouble}")
