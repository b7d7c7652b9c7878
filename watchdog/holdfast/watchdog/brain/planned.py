"""What a job's plan counts on beside what was measured: told, and nothing follows from it."""

from collections.abc import Iterator, Sequence
from typing import Final

from holdfast.api.selftest import CheckResult
from holdfast.api.status import MeasuredRate
from holdfast.watchdog.brain.state import JobState
from holdfast.watchdog.brain.step import changed

MEMORY: Final = "bandwidth-device"
NVLINK: Final = "bandwidth-peer"
KEPT: Final = frozenset({MEMORY, NVLINK, "bandwidth-host"})
LINK: Final = "link"
"""The middle link between nodes, as a test of links measures it by TCP."""
WORSE: Final = 0.05
"""What is that much worse than planned is told; noise is less."""


def measured(state: JobState, node: str, checks: Sequence[CheckResult]) -> JobState:
    """The state that remembers which rates the self-test of a node has measured."""
    rates = dict(state.rates)
    for each in checks:
        if each.rate is None or each.check not in KEPT:
            continue
        known = rates.get(each.check) or MeasuredRate(each.check, 0.0, each.rate, node, 0)
        least, where = min((known.least, known.node), (each.rate, node), key=lambda told: told[0])
        count = known.count + 1
        mean = known.mean + (each.rate - known.mean) / count
        rates[each.check] = MeasuredRate(each.check, mean, least, where, count)
    return changed(state, rates=rates) if rates != state.rates else state


def rates_of(state: JobState) -> tuple[MeasuredRate, ...]:
    """All that was measured, and what the middle link between nodes has."""
    usual = state.links.usual
    links = (MeasuredRate(LINK, usual.rate, usual.rate, "", len(state.links.tested_at)),) if usual else ()
    return (*state.rates.values(), *links)


def beside_plan(state: JobState, step_time_s: float | None) -> str:
    """What is worse than the job's plan counts on, in words; empty where nothing is, or it carries none."""
    return "; ".join(_worse(state, step_time_s))


def _worse(state: JobState, step_time_s: float | None) -> Iterator[str]:
    expects = state.policy.expects if state.policy is not None else None
    if expects is None:
        return
    for check, what, wanted in (
        (MEMORY, "GPU memory", expects.memory_rate),
        (NVLINK, "NVLink", expects.nvlink_rate),
    ):
        found = state.rates.get(check)
        if found is not None and found.mean < (1.0 - WORSE) * wanted:
            least = f", the least {_gigabytes(found.least)} on {found.node}" if found.count > 1 else ""
            yield f"{what} reaches {_gigabytes(found.mean)} of {_gigabytes(wanted)} planned{least}"
    if step_time_s is not None and not _is_smaller(state) and step_time_s > (1.0 + WORSE) * expects.step_seconds:
        yield f"a step takes {step_time_s:.3g} s, {expects.step_seconds:.3g} s planned"


def _is_smaller(state: JobState) -> bool:
    """Whether fewer ranks run than the job is to have at most, which are those that were planned."""
    if state.round is None or state.policy is None:
        return False
    return state.round.world_size < state.policy.nodes_max * state.policy.processes_per_node


def _gigabytes(rate: float) -> str:
    return f"{rate / 1e9:.4g} GB/s"
