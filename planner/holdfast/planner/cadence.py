"""How often to checkpoint: formulas, without a job around them. Times are seconds.

Sources: J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17 (9), 1974,
https://doi.org/10.1145/361147.361115; J. T. Daly, "A higher order estimate of the optimum checkpoint interval for
restart dumps", FGCS 22 (3), 2006, https://doi.org/10.1016/j.future.2004.11.016
"""

import math


def young_s(cost_s: float, between_failures_s: float) -> float:
    """The interval of least loss to the first order: `cost_s` is what one checkpoint costs the training."""
    return math.sqrt(2.0 * cost_s * between_failures_s)


def daly_s(cost_s: float, between_failures_s: float) -> float:
    """The same to a higher order, from the end of one checkpoint to the begin of the next.

    Where checkpoints cost twice as much as there is time between failures, there is no better interval than that
    time. Where nothing fails, none is due; where they cost nothing, always.
    """
    if cost_s <= 0.0:
        return 0.0
    if math.isinf(between_failures_s) or cost_s >= 2.0 * between_failures_s:
        return between_failures_s
    part = cost_s / (2.0 * between_failures_s)
    return young_s(cost_s, between_failures_s) * (1.0 + math.sqrt(part) / 3.0 + part / 9.0) - cost_s
