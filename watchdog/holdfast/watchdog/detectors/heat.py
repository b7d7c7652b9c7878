"""How hot one GPU has been, and for how long. Unknown is neither hot nor cool."""

import math
from array import array
from collections.abc import Iterator
from itertools import islice

from holdfast.api.policy import ThermalPolicy
from holdfast.api.telemetry import GpuSample

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

EVERY_S = 10.0
POINTS = 7  # a minute
POINTS_MIN = 5
# Sensors read whole degrees and waver by one: a rise of less may be noise, in a minute, and in less than that.
RISE_C_MIN = 5.0
RISE_C_MIN_SHORT = 10.0

# What heats a whole rack reaches its nodes within this time of each other.
TOGETHER_S = 120.0
# For so long it must have been calm before it is over, or before it counts as a new one.
CALM_S = 300.0
# Two hot nodes are a coincidence, or neighbours of one hot spot.
NODES_MIN = 3


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


# Where a temperature is going, from the last minute of it.
#
# Under a new load, and when its cooling fails, a GPU warms up towards a new equilibrium: ever slower, by the same
# factor in equal times. So two lines are laid through the two halves of the last minute, and the second half's
# slope goes on to shrink as it did from the first. A steady rise is a line, as a limiting case. While a rise still
# grows steeper it has only begun, and nothing is said yet.
#
# Source: Newton's law of cooling, https://en.wikipedia.org/wiki/Newton%27s_law_of_cooling


class Trend:
    """Margins below a limit, in degrees Celsius, every `EVERY_S` seconds or slower."""

    __slots__ = ("_at", "_margins")

    def __init__(self) -> None:
        self._at = array("d")
        self._margins = array("f")

    def take(self, margin_c: float, at: float) -> bool:
        """Keep a point; False when the last one is too recent to keep another."""
        if self._at and at - self._at[-1] < EVERY_S:
            return False
        self._at.append(at)
        self._margins.append(margin_c)
        if len(self._at) > POINTS:
            del self._at[0]
            del self._margins[0]
        return True

    def clear(self) -> None:
        """What was before is not known to lead to what comes."""
        del self._at[:]
        del self._margins[:]

    def rises_by(self, within_s: float) -> float | None:
        """By how much the temperature is about to rise in `within_s`; None when it does not rise steadily."""
        if len(self._at) < POINTS_MIN or self._margins[0] - self._margins[-1] < RISE_C_MIN:
            return None
        rise_c_min = RISE_C_MIN if len(self._at) == POINTS else RISE_C_MIN_SHORT
        middle = len(self._at) // 2
        half_s = (self._at[-1] - self._at[0]) / 2
        first, second = -self._slope(0, middle + 1), -self._slope(middle, len(self._at))
        if second <= 0 or second > first or (first + second) * half_s < rise_c_min:
            return None
        shrinks, halves = second / first, within_s / half_s
        if shrinks == 1:
            return second * within_s
        return second * half_s * shrinks * (1 - math.pow(shrinks, halves)) / (1 - shrinks)

    def _slope(self, start: int, end: int) -> float:
        """Of the line with the least squares through some of the points, in degrees per second."""
        at, margins = self._at[start:end], self._margins[start:end]
        mean_at, mean_margin = sum(at) / len(at), sum(margins) / len(margins)
        spread = sum((each - mean_at) ** 2 for each in at)
        return sum((x - mean_at) * (y - mean_margin) for x, y in zip(at, margins, strict=True)) / spread


# Nodes that share their cooling: which of them were hot lately, and which are getting hot.


class Recent:
    """Nodes by when each was seen last, the most recent last. O(1) each."""

    def __init__(self) -> None:
        self._at: dict[str, float] = {}

    def see(self, node: str, at: float) -> None:
        self._at.pop(node, None)
        self._at[node] = at

    def forget(self, node: str) -> None:
        self._at.pop(node, None)

    def since(self, at: float) -> Iterator[str]:
        """The nodes seen at that time or later, the most recent first."""
        for node in reversed(self._at):
            if self._at[node] < at:
                return
            yield node

    def drop_before(self, at: float) -> int:
        """Forget who was seen longer ago; how many are left."""
        while self._at and self._at[next(iter(self._at))] < at:
            del self._at[next(iter(self._at))]
        return len(self._at)

    def __contains__(self, node: str) -> bool:
        return node in self._at


class Rack:
    """One rack, or all nodes of which no rack is known: then `name` is empty."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.found: str | None = None  # the hottest node when the whole rack was found hot
        self.rising = Recent()
        self._reporting = Recent()
        self._hot = Recent()

    def look(self, node: str, *, hot: bool, at: float) -> None:
        """Count a node that tells how hot its GPUs are."""
        self._reporting.see(node, at)
        if hot:
            self._hot.see(node, at)

    def forget(self, node: str) -> None:
        """The node is somewhere else."""
        for each in (self._reporting, self._hot, self.rising):
            each.forget(node)

    def hot_nodes(self, now: float) -> tuple[str, ...]:
        return tuple(self._hot.since(now - TOGETHER_S))

    def reporting(self, now: float) -> int:
        """How many nodes tell how hot they are."""
        return self._reporting.drop_before(now - TOGETHER_S)

    def is_hot(self, now: float) -> bool:
        """Whether so many nodes are hot that it is not the nodes'."""
        self._hot.drop_before(now - CALM_S)
        needed = max(NODES_MIN, math.ceil(self.reporting(now) / 2))
        return sum(1 for _ in islice(self._hot.since(now - TOGETHER_S), needed)) >= needed

    def is_calm(self, now: float) -> bool:
        """Whether for a while only so few were hot that each may be judged by itself."""
        return self._hot.drop_before(now - CALM_S) < NODES_MIN

    def may_become_hot(self, node: str, now: float) -> bool:
        """Whether others in the rack are hot as well, or will be: then it is worth a wait to tell which it is."""
        if not self.name:
            return False  # in a large job there is always somebody
        others = (*self._hot.since(now - TOGETHER_S), *self.rising.since(now - TOGETHER_S))
        return any(other != node for other in others)

    def begins_to_rise(self, node: str, now: float) -> bool:
        """Whether a rise on a node is worth a word: the first of its episode, and not all of a rack at once."""
        others = self.rising.drop_before(now - CALM_S)
        known = node in self.rising
        self.rising.see(node, now)
        return not known and others < NODES_MIN
