"""Which Kubernetes Holdfast supports. The doctor, the chart, the documentation and the tests are held to this.

A minor version is supported from `OLDEST` on: one more than upstream still mends, so that a cluster which is late
by one upgrade is served. The tests run on `NEWEST_TRIED`, the operator's on `OLDEST_TRIED` as well.
Source: https://kubernetes.io/releases/ (upstream mends the newest three minor versions)
"""

from typing import Final

OLDEST: Final = "1.34"
NEWEST: Final = "1.37"

OLDEST_TRIED: Final = "1.34.4"
NEWEST_TRIED: Final = "1.37.2"


def minor_of(version: str) -> tuple[int, int]:
    """`1.34` of `1.34` and of `1.34.4`, to be compared."""
    major, minor, *_ = version.split(".")
    return int(major), int(minor)
