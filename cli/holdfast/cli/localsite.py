"""The runs on this machine: read from their watchdog while it lives, afterwards from what it stored."""

import contextlib
import shlex
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from holdfast.api.errors import InvalidInput, Problem, Unavailable
from holdfast.api.event import Journaled
from holdfast.api.incident import Incident
from holdfast.api.ledger import LedgerReport
from holdfast.api.status import LastSeen, NodeStatus, RankStatus
from holdfast.cli.figures import kept_series, series_path
from holdfast.cli.logs import LogLine, LogRequest
from holdfast.cli.output import remark
from holdfast.cli.seen import RecordedIncidents, SeenStatus, seen_last
from holdfast.cli.statedirectory import StateDirectory, find_state_directory, is_over, runs_under_here
from holdfast.cli.target import Target, only_one, split_job
from holdfast.cli.watchdogclient import DirectLine, WatchdogClient, gone_text
from holdfast.cli.watchdogsource import Answer, Document, WatchdogSite, WatchdogSource, remark_end
from holdfast.wire.access import Access, Address, Credential

if TYPE_CHECKING:
    from holdfast.watchdog.store.sqlite import SqliteStore

STORED_LIMIT = 10_000
Content = TypeVar("Content")


class LocalSource:
    """One job, from a state directory: from its watchdog while it lives, afterwards as it was last known."""

    def __init__(self, directory: StateDirectory) -> None:
        self.directory = directory
        self.job = job_of(directory)

    def status(self) -> SeenStatus:
        return self._asked(
            lambda live: live.status(), lambda: seen_last(self.last(), datetime.now(UTC).timestamp())
        )

    def ranks(self) -> tuple[RankStatus, ...]:
        return self._asked(lambda live: live.ranks(), lambda: self._told_last().ranks)

    def nodes(self) -> tuple[NodeStatus, ...]:
        return self._asked(lambda live: live.nodes(), lambda: self._told_last().nodes)

    def ledger(self) -> LedgerReport:
        """Where every GPU-second went; of a run that is over, from what its store keeps."""

        def stored() -> LedgerReport:
            from holdfast.watchdog import brain
            from holdfast.watchdog.brain.costs import report_of
            from holdfast.watchdog.journal.replay import recalled

            with self.store() as store:
                origin = recalled(store, self.job, brain=brain)
            return report_of(origin.state, origin.at)

        return self._asked(lambda live: live.ledger(), stored)

    def logs(self, request: LogRequest) -> Iterator[LogLine]:
        from holdfast.cli.locallogs import lines_of

        return lines_of(self.directory, request, datetime.now(UTC).timestamp())

    def incidents(self) -> tuple[Incident, ...] | RecordedIncidents:
        """A run that is over is read from its store."""

        def stored() -> tuple[Incident, ...]:
            with self.store() as store:
                return tuple(store.incidents(self.job, limit=STORED_LIMIT))

        return self._asked(lambda live: live.incidents(), stored)

    def series(self) -> bytes:
        """The job's figures over time: from its console while that lives, else as far as one has kept them."""
        at = self.directory.console_at()
        if at is not None:
            try:
                line = DirectLine(
                    Access(Address(at.host, at.port), Credential(self.directory.token())),
                    token_of="this state directory",
                )
                return line.ask("GET", series_path(self.job))
            except (Unavailable, InvalidInput):
                pass  # it ended with its run; what it kept is there
        return kept_series(self.directory.series_file, self.job)

    def client(self) -> WatchdogClient:
        """A client of the run's watchdog. Raises Unavailable when none was ever there."""
        at = self.directory.listening_at()
        if at is None:
            root = self.directory.root
            raise Unavailable(f"no watchdog runs for {root}; the run is over, or has not begun")
        access = Access(Address(at.host, at.port), Credential(self.directory.token()), self.directory.trust())
        return WatchdogClient(DirectLine(access, token_of="this state directory"), self.job)

    def journal(self, after: int) -> Iterator[Journaled]:
        """From the store, which is there after the run as well. Raises Unavailable when it is not."""
        with self.store() as store:
            extent = store.extent(self.job)
            if after + 1 < extent.first:
                remark(gone_text(extent.first, extent.compacted_at))
            yield from store.tail(self.job, max(after, extent.first - 1))

    @contextlib.contextmanager
    def store(self) -> Iterator["SqliteStore"]:
        """Where the run keeps its journal, incidents and state. Raises Unavailable when there is none."""
        from holdfast.watchdog.store.sqlite import SqliteStore

        if not self.directory.store_file.exists():
            raise Unavailable(f"there is no journal in {self.directory.root}")
        store = SqliteStore(self.directory.store_file)
        try:
            yield store
        finally:
            store.close()

    def _asked(self, ask: Callable[[WatchdogSource], Content], stored: Callable[[], Content]) -> Content:
        """What the watchdog says; of a run that is over, what its store keeps. Raises as both."""
        if self.directory.store_file.exists() and is_over(self.directory):
            return stored()
        try:
            return ask(WatchdogSource(self.client()))
        except Unavailable:
            # A run that is alive starts its watchdog again: what is stored now is not its end.
            if not self.directory.store_file.exists() or self.directory.lock_file.exists():
                raise
            return stored()

    def _told_last(self) -> LastSeen:
        """What was last known, said to be that."""
        from holdfast.watchdog.journal.lastseen import aged

        last, now = self.last(), datetime.now(UTC).timestamp()
        remark_end(seen_last(last, now))
        return aged(last, now)

    def last(self) -> LastSeen:
        """What was last known of a run that is over. Raises Unavailable when the run had not begun."""
        from holdfast.watchdog import brain
        from holdfast.watchdog.journal.lastseen import recall

        with self.store() as store:
            last = recall(store, self.job, brain=brain)
        if last is None:
            raise Unavailable(f"the run of {self.directory.root} ended before its job was submitted")
        return last


class LocalSite(WatchdogSite):
    """From the state directory that was named, or those under the current directory."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def statuses(self) -> tuple[SeenStatus, ...]:
        return (self.source().status(),)

    def client(self) -> WatchdogClient:
        return self.source().client()

    def hand_in(self, document: Document, timeout_s: float) -> Answer:
        try:
            return super().hand_in(document, timeout_s)
        except Unavailable as error:
            directory, batches = self.source().directory, document["spec"].get("skipBatches")
            if batches is None or not is_over(directory) or (run := directory.running_job()) is None:
                raise
            begin = ["holdfast", "run", run.job_file, "--state-dir", str(directory.root), "--skip-batches"]
            raise Unavailable(
                f"{error}; to begin it again without them: {shlex.join([*begin, str(batches)])}"
            ) from None

    def source(self) -> LocalSource:
        told, named = self._target.state_dir, self._target.job
        source = LocalSource(find_state_directory(told) if told is not None or named is None else _find(named))
        if named is not None and split_job(named, source.job.partition("/")[0]) != split_job(source.job, ""):
            raise InvalidInput(Problem("job", named, f"{source.directory.root} belongs to {source.job}"))
        return source


def job_of(directory: StateDirectory) -> str:
    """Which job a state directory belongs to. Raises Unavailable when it is none."""
    running = directory.running_job()
    if running is None:
        raise Unavailable(f"{directory.root} is no state directory of a run")
    return running.job


def _find(named: str) -> StateDirectory:
    """The directory under here of the job that was named. Raises InvalidInput naming those there are."""
    namespace, _, name = named.rpartition("/")
    jobs = {directory: job_of(directory) for directory in runs_under_here()}
    fits = [each for each, job in jobs.items() if job == named or (not namespace and job.endswith(f"/{name}"))]
    if not fits:
        known = ", ".join(sorted(jobs.values())) or "none"
        raise InvalidInput(Problem("job", named, f"the runs under {Path('.holdfast').absolute()} are: {known}"))
    only_one(tuple(jobs[each] for each in fits), "several namespaces")
    return fits[0]
