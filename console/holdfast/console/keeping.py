"""Keeps jobs' figures over time in a file: a console forgets them when it ends, and many ask afterwards."""

import asyncio
import logging
import os
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec

from holdfast.api.decoding import decode_json
from holdfast.api.errors import Malformed
from holdfast.console.feed import Feed
from holdfast.console.series import NAMES

logger = logging.getLogger(__name__)

EVERY_S: Final = 60.0
POINTS: Final = 4096
Columns = dict[str, list[Any]]


class SeriesKeeper:
    """Writes `file`: of each job the columns its series are answered with, those of earlier consoles first."""

    def __init__(self, feed: Feed, file: Path) -> None:
        self._feed = feed
        self._file = file
        self._earlier = _read(file)

    async def keep(self) -> NoReturn:
        """Write now and then, until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            self.write()

    def write(self) -> None:
        """Write what is known now, seen whole or not at all. A file that takes nothing ends no console."""
        told = {
            name: _joined(self._earlier.get(name, {}), job.series.columns(POINTS // 2))
            for name, job in self._feed.jobs.items()
            if len(job.series)
        }
        if not told:
            return
        beside = self._file.with_suffix(".part")
        try:
            beside.write_bytes(msgspec.json.encode({**self._earlier, **told}))
            os.replace(beside, self._file)
        except OSError as error:
            logger.warning("figures are not kept file=%s reason=%s", self._file, error)


def _joined(earlier: Columns, newer: Columns) -> Columns:
    """Both in the order of time; where they meet the newer ones count. The earlier ones are thinned to what room
    there is.
    """
    if not earlier:
        return newer
    first = newer["at"][0]
    kept = [place for place, at in enumerate(earlier["at"]) if at < first]
    room = POINTS - len(newer["at"])
    if len(kept) > room:
        step = len(kept) / room
        kept = [kept[int(place * step)] for place in range(room)]
    return {name: [*(earlier[name][place] for place in kept), *newer[name]] for name in NAMES}


def _read(file: Path) -> dict[str, Columns]:
    """What an earlier console kept; a file that is none is as no file."""
    try:
        found = decode_json(file.read_bytes(), dict[str, dict[str, list[Any]]])
    except (OSError, Malformed):
        return {}
    return {name: columns for name, columns in found.items() if _fits(columns)}


def _fits(columns: Columns) -> bool:
    return columns.keys() >= set(NAMES) and len({len(columns[name]) for name in NAMES}) == 1
