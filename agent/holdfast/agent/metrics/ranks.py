"""What the ranks on this node do."""

from collections.abc import Callable, Iterable
from typing import Final

from holdfast.agent.metrics.sheet import Sheet
from holdfast.agent.picture import Picture
from holdfast.api.telemetry import RankSample

_GAUGES: Final[tuple[tuple[str, Callable[[RankSample], float | None]], ...]] = (
    ("holdfast_rank_step", lambda rank: rank.step),
    ("holdfast_rank_loss", lambda rank: rank.loss),
    ("holdfast_rank_grad_norm", lambda rank: rank.grad_norm),
    ("holdfast_rank_step_seconds", lambda rank: rank.step_time_s),
    ("holdfast_rank_step_tokens", lambda rank: rank.tokens),
)


def write_ranks(sheet: Sheet, picture: Picture, *, node: str, now: float) -> None:
    """Every rank, with its ages as of `now`."""
    looked_s = max(0.0, now - picture.read_at)
    for job, reading in picture.jobs.items():
        for rank in _newest_round(reading.ranks):
            labels = (job, str(rank.rank), node)
            for name, value_of in _GAUGES:
                sheet.put(name, labels, value_of(rank))
            pulse_age_s = None if rank.pulse_age_s is None else rank.pulse_age_s + looked_s
            sheet.put("holdfast_rank_progress_age_seconds", labels, rank.progress_age_s + looked_s)
            sheet.put("holdfast_rank_pulse_age_seconds", labels, pulse_age_s)
            sheet.put("holdfast_rank_phase", (*labels, rank.phase.name.lower()), 1)
            sheet.put("holdfast_rank_process", (*labels, rank.process.value), 1)
            if rank.tokens is not None:
                sheet.put("holdfast_rank_tokens_total", labels, picture.tokens[job, rank.rank])
        sheet.put("holdfast_fingerprints_total", (job, node), picture.fingerprints[job])


def _newest_round(ranks: Iterable[RankSample]) -> Iterable[RankSample]:
    """A node may hold a leftover record of an older round: the newest round's word on a rank counts."""
    return {rank.rank: rank for rank in sorted(ranks, key=lambda rank: rank.round)}.values()
