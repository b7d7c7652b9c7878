"""The trackers as a program: `python -m holdfast.console.trackers`. One for the whole cluster.

It follows the watchdog's feed, asks for the bulletin of each job that is published, and keeps a desk for each.
With `--job` it ends when that job is over and published.

Exit codes: 0 after SIGTERM or the end of the one job, 2 for a wrong command line, 3 when something needed is away.
"""

import asyncio
import ctypes
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Final

import msgspec

from holdfast.api.bulletin import Bulletin
from holdfast.api.decoding import decode
from holdfast.api.errors import HoldfastError, InvalidInput, Unavailable
from holdfast.api.feed import (
    FEED_BYTES_MAX,
    FEED_PATH,
    FeedHello,
    IncidentTold,
    JobGone,
    JobTold,
    PlacesTold,
    Pulse,
    StepsTold,
    Told,
)
from holdfast.console.trackers.credentials import Credentials, NamespaceSecrets, OwnEnvironment
from holdfast.console.trackers.desk import Desk, Said, sweep
from holdfast.console.trackers.settings import TrackerSettings, parse_settings
from holdfast.console.trackers.webhook import wall_clock
from holdfast.wire.http import WatchdogHttp
from holdfast.wire.line import Line, Manner

logger = logging.getLogger(__name__)

TURN_S: Final = 1.0
UNPUBLISHED_EVERY_S: Final = 15.0
"""How often a job that is published nowhere is asked about: its spec may have changed."""
_BULLETIN: msgspec.msgpack.Decoder[Bulletin] = msgspec.msgpack.Decoder(Bulletin)
LAST_LOOK_S: Final = 2.0
KEPT_INCIDENTS: Final = 200
MANNER: Final = Manner(
    client="trackers",
    retry_first_s=0.2,
    retry_most_s=5.0,
    steady_s=5.0,
    ping_s=10.0,
    frame_bytes_max=FEED_BYTES_MAX,
)
# Source: prctl(2), https://man7.org/linux/man-pages/man2/PR_SET_PDEATHSIG.2const.html
_PR_SET_PDEATHSIG: Final = 1


class _Newest:
    """What the feed last said of one job, for a desk that is made later."""

    def __init__(self) -> None:
        self.status: JobTold | None = None
        self.places: PlacesTold | None = None
        self.incidents: dict[str, IncidentTold] = {}
        self.ask_at = 0.0

    def take(self, said: Said) -> None:
        match said:
            case JobTold():
                self.status = said
            case PlacesTold():
                self.places = said
            case IncidentTold():
                self.incidents[said.incident.id] = said
                while len(self.incidents) > KEPT_INCIDENTS:
                    del self.incidents[next(iter(self.incidents))]

    def all(self) -> list[Said]:
        """In an order in which a desk can take it: old incidents before the job's phase."""
        first = [each for each in (*self.incidents.values(), self.places, self.status) if each is not None]
        return list(first)


class Trackers:
    """Everything that is published. Fills `Speaker` towards the feed."""

    def __init__(self, settings: TrackerSettings, credentials: Credentials) -> None:
        self._settings = settings
        self._credentials = credentials
        self._http = WatchdogHttp(settings.watchdog)
        self._newest: dict[str, _Newest] = {}
        self._desks: dict[str, Desk] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}  # publishers of desks that were given up
        self._at = 0.0
        self._at_since = time.monotonic()

    async def speech(self) -> AsyncGenerator[FeedHello, None]:
        yield FeedHello("trackers")
        await asyncio.Event().wait()

    def hear(self, shown: Told) -> None:
        """What the feed says."""
        match shown:
            case Pulse():
                self._at, self._at_since = shown.at, time.monotonic()
            case JobGone():
                self._newest.pop(shown.job, None)
            case JobTold() | PlacesTold() | StepsTold() | IncidentTold():
                if self._settings.job not in (None, shown.job):
                    return
                self._newest.setdefault(shown.job, _Newest()).take(shown)
                if (desk := self._desks.get(shown.job)) is not None:
                    desk.hear(shown, time.monotonic())
            case _:
                pass

    def lost(self) -> None:
        """What was told stands; training goes on, and what is logged waits at the watchdog."""

    async def run(self) -> None:
        """Until cancelled, or the one job is over and published."""
        decoder = msgspec.msgpack.Decoder(Told)
        line = Line(self._settings.watchdog, FEED_PATH, self, decoder, MANNER, self._settings.job or "all")
        following = asyncio.create_task(line.run())
        try:
            while True:
                if following.done():
                    following.result()
                began = time.monotonic()
                await self._look()
                if self._settings.job is not None and self._is_done(self._settings.job):
                    return
                await asyncio.sleep(max(0.05, began + TURN_S - time.monotonic()))
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            for job, desk in self._desks.items():
                await self._last_look(job, desk)
            await asyncio.gather(*(desk.stop() for desk in self._desks.values()), *self._ending.values())
            await self._http.close()
            await self._credentials.close()

    async def _look(self) -> None:
        """A turn for each job; the desks of those that are gone retire."""
        for job in list(self._newest):
            await self._turn(job)
        for job in self._desks.keys() - self._newest.keys():
            self._ending[job] = asyncio.create_task(self._desks.pop(job).retire())

    async def _last_look(self, job: str, desk: Desk) -> None:
        """What was said since the last turn goes onto the spool."""
        now = time.monotonic()
        try:
            async with asyncio.timeout(LAST_LOOK_S):
                if (bulletin := await self._bulletin(job, desk)) is not None:
                    desk.announce(bulletin, self._at + now - self._at_since, now)
        except (HoldfastError, TimeoutError) as error:
            logger.info("nothing more was heard job=%s reason=%s", job, error)
        desk.write(now)

    def _is_done(self, job: str) -> bool:
        desk = self._desks.get(job)
        return desk is not None and desk.is_done

    def _give_up(self, job: str) -> None:
        """Its publisher may take half a minute to end; nobody but this job's next desk waits for that."""
        self._ending[job] = asyncio.create_task(self._desks.pop(job).stop())

    async def _turn(self, job: str) -> None:
        """One job: ask, write, and see to its publisher. What goes wrong with it costs no other job anything."""
        if (ending := self._ending.get(job)) is not None:
            if not ending.done():
                return  # two publishers would both go on from where the tracker is
            del self._ending[job]
        now, newest = time.monotonic(), self._newest[job]
        desk = self._desks.get(job)
        try:
            if desk is not None or now >= newest.ask_at:
                bulletin = await self._bulletin(job, desk)
                desk = await self._desk_of(job, desk, bulletin, newest)
                if desk is not None and bulletin is not None:
                    desk.announce(bulletin, self._at + now - self._at_since, now)
        except Unavailable as error:
            logger.debug("the watchdog does not answer job=%s reason=%s", job, error)
        except (HoldfastError, OSError) as error:
            newest.ask_at = now + UNPUBLISHED_EVERY_S
            logger.warning("a job is not published now job=%s reason=%s", job, error)
        if desk is not None:
            desk.write(now)
            await desk.attend(now)

    async def _bulletin(self, job: str, desk: Desk | None) -> Bulletin | None:
        after, life = desk.after if desk is not None else (0, "")
        content = await self._http.ask("GET", f"/v1/jobs/{job}/bulletin?after={after}&life={life}")
        return None if content is None else decode(_BULLETIN, content)

    async def _desk_of(
        self, job: str, desk: Desk | None, bulletin: Bulletin | None, newest: _Newest
    ) -> Desk | None:
        """The desk the job is to have: another one where another job has the name, or its spec says otherwise."""
        if bulletin is None:
            return desk
        if desk is not None and (desk.reporting, desk.uid) == (bulletin.reporting, bulletin.uid):
            return desk
        if desk is not None:
            self._give_up(job)
            return None
        if bulletin.reporting is None:
            newest.ask_at = time.monotonic() + UNPUBLISHED_EVERY_S
            return None
        made = self._desks[job] = Desk(bulletin, self._settings, self._credentials)
        logger.info("a job is published job=%s spool=%s", job, made.job)
        now = time.monotonic()
        for said in newest.all():
            made.hear(said, now)
        return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Publish until a signal ends it. Returns the exit code."""
    parent_pid = os.getppid()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        settings = parse_settings(sys.argv[1:] if arguments is None else arguments)
        if settings.die_with_parent:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
            if os.getppid() != parent_pid:
                return 0
        settings.watchdog.credential.read()
        settings.folder.mkdir(parents=True, exist_ok=True)
        if settings.job is None:
            sweep(settings.folder, wall_clock())
        asyncio.run(serve(settings))
    except InvalidInput as error:
        print(f"holdfast trackers: {error}", file=sys.stderr)  # noqa: T201 - a user's mistake is answered
        return 2
    except (Unavailable, OSError) as error:
        print(f"holdfast trackers: {error}", file=sys.stderr)  # noqa: T201 - the same
        return 3
    return 0


async def serve(settings: TrackerSettings) -> None:
    """Publish until SIGTERM or SIGINT, or until the one job is over. Raises Unavailable."""
    server = settings.secrets_server
    credentials: Credentials = OwnEnvironment() if server is None else NamespaceSecrets(server)
    publishing = asyncio.create_task(Trackers(settings, credentials).run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, publishing.cancel)
    try:
        await publishing
    except asyncio.CancelledError:
        logger.info("stopped")
