"""Ledgers of jobs that are gone: what they had cost is asked about later than anything else of them.

Each is a snapshot of its own beside those of jobs, under a name that no job can have; which there are is one more.
Of a name there is one, that of the job that had it last.
"""

from typing import Final

import msgspec

from holdfast.api.ledger import LedgerReport
from holdfast.watchdog.brain.reputation import namespace_of
from holdfast.watchdog.server.fleet import recalled
from holdfast.watchdog.store.store import START, Fence, Snapshot, Store

# A namespace has no dot.
LEDGERS: Final = "holdfast.dev/ledgers"
KEPT_OF_NAMESPACE: Final = 256


def name_of(job: str) -> str:
    """Where it is kept. A job's name has one slash."""
    return f"{job}/ledger"


class PastLedgers:
    """Written from one thread. Raises Unavailable when made."""

    def __init__(self, store: Store, fence: Fence) -> None:
        self._store = store
        self._fence = fence
        known = recalled(store, LEDGERS, dict[str, float], "whose ledgers are kept")
        self._at = known or {}  # by job, the oldest first

    def keep(self, report: LedgerReport) -> None:
        """The job is to go now. Nothing is kept of one that held nothing; of a namespace that has too many the
        oldest goes. Raises Unavailable, Damaged, Fenced.
        """
        if not report.entries:
            return
        known = {job: at for job, at in self._at.items() if job != report.job}
        of_namespace = [each for each in known if namespace_of(each) == namespace_of(report.job)]
        for oldest in of_namespace[: max(0, len(of_namespace) - KEPT_OF_NAMESPACE + 1)]:
            self._store.forget(name_of(oldest), fence=self._fence)
            del known[oldest]
        known[report.job] = report.at
        self._save(name_of(report.job), report.at, report)
        self._save(LEDGERS, report.at, known)
        self._at = known

    def of(self, job: str) -> LedgerReport | None:
        """That of the job that had this name last, None when none is kept. Raises Unavailable."""
        if job not in self._at:
            return None
        return recalled(self._store, name_of(job), LedgerReport, f"the ledger of {job}")

    def _save(self, name: str, at: float, what: object) -> None:
        self._store.save(name, Snapshot(START, at, msgspec.msgpack.encode(what)), fence=self._fence)
