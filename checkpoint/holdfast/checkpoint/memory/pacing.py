"""How fast copies leave a node: so that they are done in time, and disturb training as little as they can."""

from dataclasses import dataclass

MIB = 1 << 20
# A copy is done when half the time to the next snapshot is over, which leaves room for a slow peer.
_SHARE_OF_INTERVAL = 0.5
_SLOWEST_BYTES_S = 64 * MIB
# How far a bucket may run ahead after a pause: sending waits for whole blocks, not for single bytes.
_BURST_S = 0.05


def rate_for(image_bytes: int, interval_s: float | None, ceiling_bytes_s: float) -> float:
    """Bytes a second for one rank's snapshot, when one comes every `interval_s` (None: not known yet)."""
    if interval_s is None:
        return ceiling_bytes_s / 4
    wanted = image_bytes / max(interval_s * _SHARE_OF_INTERVAL, 1e-3)
    return min(max(wanted, _SLOWEST_BYTES_S), ceiling_bytes_s)


@dataclass(slots=True)
class Pace:
    """Says how long to wait before the next bytes. `now_s` never goes back."""

    bytes_s: float
    _ready_s: float = 0.0

    def delay_s(self, size_bytes: int, now_s: float) -> float:
        """Account for bytes that are about to be sent; how long to wait before that."""
        start = max(self._ready_s, now_s - _BURST_S)
        self._ready_s = start + size_bytes / self.bytes_s
        return max(start - now_s, 0.0)
