"""What the time of a job was worth."""

from holdfast.api.exposition import Page
from holdfast.api.policy import ModelFlops
from holdfast.api.round import Round
from holdfast.watchdog.brain.state import JobState


def write_worth(page: Page, state: JobState, *, now: float) -> None:
    """Where its time and its GPUs' time went, and what that cost.

    Of a script that publishes no steps nobody knows which of its time was useful.
    """
    job, spent, price = state.job, state.ledger.spent(now), state.ledger.price
    if spent is not None:
        page.put("holdfast_job_time_seconds", spent.held_s, job, "suspended")
        page.put("holdfast_job_gpu_seconds_total", spent.gpu_s, job)
        page.put("holdfast_job_cost_total", spent.cost if price else None, job, price.currency if price else "")
    if spent is not None and state.publishes:
        page.put("holdfast_job_ettr_ratio", state.ledger.ettr(now), job)
        page.put("holdfast_job_time_seconds", spent.useful_s, job, "useful")
        page.put("holdfast_job_time_seconds", spent.lost_s, job, "lost")
        page.put("holdfast_job_gpu_time_seconds", spent.useful_gpu_s, job, "useful")
        page.put("holdfast_job_gpu_time_seconds", spent.lost_gpu_s, job, "lost")
    if state.policy is not None and state.policy.gpu_hour is not None:
        cost = state.policy.gpu_hour
        page.put("holdfast_job_gpu_hour_cost", cost.amount, job, cost.currency)


def write_utilization(page: Page, state: JobState, tokens_per_s: float | None) -> None:
    """MFU of the round that runs, each rank on a GPU; nothing where the job or its ranks do not say enough."""
    flops = state.policy.flops if state.policy is not None else None
    if flops is None or tokens_per_s is None or not isinstance(state.desired, Round):
        return
    page.put("holdfast_job_mfu_ratio", mfu(tokens_per_s, flops, gpus=state.desired.world_size), state.job)


def mfu(tokens_per_s: float, flops: ModelFlops, *, gpus: int) -> float:
    """Model FLOPs utilization: the tokens a second over those that `gpus` at their peak could make.

    Source: Chowdhery et al. 2022, PaLM, appendix B, https://arxiv.org/abs/2204.02311
    """
    return tokens_per_s * flops.per_token / (gpus * flops.gpu_peak_per_s)
