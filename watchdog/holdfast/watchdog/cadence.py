"""How often to checkpoint: formulas, without a job around them. Times are seconds.

Sources: J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17 (9), 1974,
https://doi.org/10.1145/361147.361115; J. T. Daly, "A higher order estimate of the optimum checkpoint interval for
restart dumps", FGCS 22 (3), 2006, https://doi.org/10.1016/j.future.2004.11.016
"""

from math import sqrt

SECONDS_PER_DAY = 86_400.0

# Failures per node and day before anything was seen of this job.
# Source: 6.50 per 1,000 node-days, https://arxiv.org/abs/2410.21680 (section III, RSC-1)
NODE_FAILURES_PER_DAY = 6.50e-3


def young_s(cost_s: float, between_failures_s: float) -> float:
    """The interval of least loss to the first order: `cost_s` is what one checkpoint costs the training."""
    return sqrt(2.0 * cost_s * between_failures_s)


def daly_s(cost_s: float, between_failures_s: float) -> float:
    """The same to a higher order, from the end of one checkpoint to the begin of the next.

    Where checkpoints cost twice as much as there is time between failures, there is no better interval than that
    time.
    """
    if cost_s >= 2.0 * between_failures_s:
        return between_failures_s
    part = cost_s / (2.0 * between_failures_s)
    return young_s(cost_s, between_failures_s) * (1.0 + sqrt(part) / 3.0 + part / 9.0) - cost_s


def between_failures_s(nodes: int, failures: int, seen_s: float) -> float:
    """The mean time between failures that the published rate and `failures` in `seen_s` together suggest.

    The rate counts as one failure in its own mean time: it decides at first and hardly matters after a few.
    """
    expected_s = SECONDS_PER_DAY / (NODE_FAILURES_PER_DAY * max(1, nodes))
    return (expected_s + max(0.0, seen_s)) / (1 + failures)
