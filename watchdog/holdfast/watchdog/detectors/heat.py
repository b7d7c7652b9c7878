"""How hot one GPU has been, and for how long. Unknown is neither hot nor cool."""

import math

from holdfast.api.policy import ThermalPolicy
from holdfast.api.telemetry import GpuSample
from holdfast.watchdog.detectors.trend import Trend

# NVML's reasons for lower clocks: held down by software for heat, and by the hardware itself.
# Source: https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html
HEAT_REASONS = 0x20 | 0x40
# A GPU that is held down for heat for this share of the time is hot, whatever its margin; less comes and goes.
SLOWED_RATIO = 0.2
# Warmer than a hot one by this much, it is cool.
COOL_C = 5.0
# A hot GPU of which nothing is heard for longer than this may have been cool in between; of a cool one, that is
# looked at less often, three times as long.
SILENCE_S = 10.0
# Below this margin a GPU's temperatures are kept; a cooler one is far from any trouble.
KEPT_C = 30.0


class GpuHeat:
    """One GPU's clocks. `hot_since` and `cool_since` are None while it is not."""

    __slots__ = ("_slowed_s", "cool_since", "found", "hot_since", "margin_c", "seen_at", "slowed_ratio", "trend")

    def __init__(self) -> None:
        self.hot_since: float | None = None
        self.cool_since: float | None = None
        self.seen_at = float("-inf")
        self.margin_c: float | None = None
        self.slowed_ratio: float | None = None  # of the time since the sample before
        self.found = False
        self.trend = Trend()
        self._slowed_s: float | None = None

    def take(self, sample: GpuSample, at: float, policy: ThermalPolicy) -> None:
        """Take one sample. One that says nothing about heat changes nothing but that time passes."""
        margin_c = sample.margin_c
        if not tells_heat(sample):
            return
        if at - self.seen_at > SILENCE_S:
            self._forget(at)
        self.slowed_ratio = slowed_ratio = self._slowed(sample, at)
        self.margin_c, self.seen_at, self._slowed_s = margin_c, at, sample.throttled_s
        if slowed_ratio is not None and slowed_ratio >= SLOWED_RATIO:
            margin_c = -math.inf
        elif margin_c is None:
            margin_c = math.inf
        if margin_c > policy.margin_c + COOL_C:
            self.hot_since = None
            if self.cool_since is None:
                self.cool_since = at
        elif margin_c > policy.margin_c:
            self.hot_since = self.cool_since = None
        else:
            self.cool_since = None
            if self.hot_since is None:
                self.hot_since = at

    def hot_s(self, now: float) -> float:
        """For how long it has been hot."""
        return 0.0 if self.hot_since is None else now - self.hot_since

    def cool_s(self, now: float) -> float:
        """For how long it has been cool."""
        return 0.0 if self.cool_since is None else now - self.cool_since

    def _forget(self, at: float) -> None:
        self.hot_since = None
        if at - self.seen_at > 3 * SILENCE_S:
            self.cool_since = self._slowed_s = None
            self.trend.clear()

    def _slowed(self, sample: GpuSample, at: float) -> float | None:
        """The share of the time since the last sample for which heat held it down; None when Unknown."""
        if sample.throttled_s is not None and self._slowed_s is not None and at > self.seen_at:
            # A counter that went back was reset with its driver.
            return max(0.0, sample.throttled_s - self._slowed_s) / (at - self.seen_at)
        return None if sample.throttle is None else float(bool(sample.throttle & HEAT_REASONS))


def tells_heat(sample: GpuSample) -> bool:
    """Whether it says anything about heat. Without it, that is Unknown."""
    return sample.margin_c is not None or sample.throttle is not None or sample.throttled_s is not None


def is_far_from_hot(sample: GpuSample) -> bool:
    """Whether nothing of it need be kept."""
    margin_c = sample.margin_c
    return margin_c is not None and margin_c > KEPT_C and not (sample.throttle or 0) & HEAT_REASONS
