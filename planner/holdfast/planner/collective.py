"""How long collectives take: the time to start a message, and the time its bytes take (alpha and beta).

Of a ring of n members with B bytes in all, each member sends (n-1)/n B for a gather or a scatter, twice that for
an all-reduce, in n-1 or 2(n-1) steps.

Source: https://doi.org/10.1177/1094342005051521 (Thakur, Rabenseifner, Gropp: optimization of collective
communication operations in MPICH)
"""

from holdfast.planner.cluster import Reach

SOURCE = "https://doi.org/10.1177/1094342005051521"


def gather_s(bytes_: float, reach: Reach) -> float:
    """An all-gather to `bytes_` at each member, or a reduce-scatter of as much."""
    if reach.size <= 1:
        return 0.0
    return (reach.size - 1) * _hop_s(reach) + bytes_ * (reach.size - 1) / reach.size / reach.rate


def reduce_s(bytes_: float, reach: Reach) -> float:
    """An all-reduce of `bytes_` at each member."""
    return 2.0 * gather_s(bytes_, reach)


def exchange_s(bytes_: float, reach: Reach) -> float:
    """An all-to-all in which each member sends `bytes_` in all, by its own port: what stays with it is not sent,
    and what stays in its NVLink domain hardly counts beside the network.
    """
    if reach.size <= 1:
        return 0.0
    stays = reach.near if reach.near < reach.size else 1
    return reach.latency_s + bytes_ * (reach.size - stays) / reach.size / reach.port


def send_s(bytes_: float, rate: float, latency_s: float) -> float:
    """One message to one neighbour."""
    return latency_s + bytes_ / rate


def _hop_s(reach: Reach) -> float:
    """Large groups use trees, whose steps grow with the logarithm; a ring of few is no slower."""
    steps = reach.size - 1
    return reach.latency_s * min(steps, 2.0 * steps.bit_length()) / steps
