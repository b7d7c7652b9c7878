"""What the ranks on this node do."""

from collections.abc import Callable, Iterable
from typing import Final

from holdfast.agent.picture import Picture
from holdfast.api.exposition import Page
from holdfast.api.telemetry import RankSample

_GAUGES: Final[tuple[tuple[str, Callable[[RankSample], float | None]], ...]] = (
    ("holdfast_rank_step", lambda rank: rank.step),
    ("holdfast_rank_loss", lambda rank: rank.loss),
    ("holdfast_rank_grad_norm", lambda rank: rank.grad_norm),
    ("holdfast_rank_step_seconds", lambda rank: rank.step_time_s),
    ("holdfast_rank_step_tokens", lambda rank: rank.tokens),
)


def write_ranks(page: Page, picture: Picture, *, node: str, now: float) -> None:
    """Every rank, with its ages as of `now`."""
    looked_s = max(0.0, now - picture.read_at)
    for job, reading in picture.jobs.items():
        for rank in _newest_round(reading.ranks):
            labels = (job, str(rank.rank), node)
            for name, value_of in _GAUGES:
                page.put(name, value_of(rank), *labels)
            pulse_age_s = None if rank.pulse_age_s is None else rank.pulse_age_s + looked_s
            page.put("holdfast_rank_progress_age_seconds", rank.progress_age_s + looked_s, *labels)
            page.put("holdfast_rank_pulse_age_seconds", pulse_age_s, *labels)
            page.put("holdfast_rank_phase", 1, *labels, rank.phase.name.lower())
            page.put("holdfast_rank_process", 1, *labels, rank.process.value)
            if rank.tokens is not None:
                page.put("holdfast_rank_tokens_total", picture.tokens[job, rank.rank], *labels)
        page.put("holdfast_fingerprints_total", picture.fingerprints[job], job, node)


def _newest_round(ranks: Iterable[RankSample]) -> Iterable[RankSample]:
    """A node may hold a leftover record of an older round: the newest round's word on a rank counts."""
    return {rank.rank: rank for rank in sorted(ranks, key=lambda rank: rank.round)}.values()
