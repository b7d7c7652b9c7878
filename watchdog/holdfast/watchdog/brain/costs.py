"""The ledger of a job as it is told, with what is known by now of its incidents."""

from datetime import UTC, datetime, timedelta
from typing import Final

from holdfast.api.ledger import Entry, LedgerReport
from holdfast.watchdog.brain.accounts import EARLIER, Charge, Posting
from holdfast.watchdog.brain.holding import charge_of
from holdfast.watchdog.brain.state import JobState

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
EARLIER_DAYS: Final = "earlier"


def report_of(state: JobState, now: float) -> LedgerReport:
    """Every entry of the ledger at `now`, the oldest first. Evidence that came later counts: the cause and node of
    an incident are those of now, as long as the state keeps it.
    """
    accounts, policy, spent = state.ledger.at(now), state.policy, state.ledger.spent(now)
    known = {each.id: charge_of(each, each.id) for each in state.incidents}
    total = accounts.total()
    entries = [_entry(each, known) for each in accounts.postings if each.amount.gpu_us]
    return LedgerReport(
        job=state.job,
        at=now,
        gpu_us=total.gpu_us,
        money=total.money,
        entries=tuple(entries),
        currency=state.ledger.currency,
        budget=policy.budget.amount if policy is not None and policy.budget is not None else None,
        team=policy.team if policy is not None else "",
        useful_wall_s=spent.useful_s if spent is not None else 0.0,
        wall_s=spent.useful_s + spent.lost_s if spent is not None else 0.0,
    )


def _entry(posting: Posting, known: dict[str, Charge]) -> Entry:
    charge, told = posting.charge, known.get(posting.charge.incident)
    return Entry(
        row=posting.row,
        day=day_of(posting.day),
        gpu_us=posting.amount.gpu_us,
        money=posting.amount.money,
        incident=charge.incident,
        cause=told.cause if told is not None else charge.cause,
        # Members of a node that is kept away from are charged to that node, whoever the culprit is.
        node=charge.node if told is None or not charge.cause else told.node,
    )


def day_of(days: int) -> str:
    """The day, such as 2026-01-31, of so many days since 1970."""
    return EARLIER_DAYS if days == EARLIER else (EPOCH + timedelta(days=days)).date().isoformat()
