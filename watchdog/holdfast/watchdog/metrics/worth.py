"""What the time of a job was worth."""

from holdfast.api.exposition import Page
from holdfast.watchdog.state import JobState


def write_worth(page: Page, state: JobState, *, now: float) -> None:
    """Where its time went, and what a GPU costs."""
    job, spent = state.job, state.ledger.spent(now)
    page.put("holdfast_job_ettr_ratio", state.ledger.ettr(now), job)
    if spent is not None:
        page.put("holdfast_job_time_seconds", spent.useful_s, job, "useful")
        page.put("holdfast_job_time_seconds", spent.lost_s, job, "lost")
        page.put("holdfast_job_time_seconds", spent.held_s, job, "suspended")
    if state.policy is not None and state.policy.gpu_hour is not None:
        cost = state.policy.gpu_hour
        page.put("holdfast_job_gpu_hour_cost", cost.amount, job, cost.currency)
