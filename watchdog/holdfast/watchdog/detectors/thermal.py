"""A GPU is too hot, a whole rack is, or a GPU is about to be.

Hot is who is within the policy's margin of slowing itself down, or is held down for heat, at every look for the
time the policy gives. Who tells nothing is Unknown: the clock begins anew. It is over after `CALM_S` without a
break well below the margin.

One hot GPU in a cool rack is that GPU's or its node's trouble. When half of a rack is hot at the same time, its
cooling is: that is one finding, which asks for nothing, because to evict the nodes one by one would cool none of
them and leave the job without nodes. While neighbours are hot or getting hot, a verdict waits until it is clear
which it is. All nodes without a known rack count as one, for the case that the whole hall is hot.

A look every `LOOK_EVERY_S`, and every other time at a node without a hot GPU, is enough: a report in between costs
next to nothing.
"""

import math
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import chain, islice, takewhile

from holdfast.api.event import ConditionOver
from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.policy import Policy, ThermalPolicy, XidAction
from holdfast.api.telemetry import GpuSample
from holdfast.watchdog.detectors.detector import ASKS, Detector, Placed, Reported, Sample

GPU_HOT, RACK_HOT, NODES_HOT, RISING = "GPU hot", "rack hot", "nodes hot", "temperature rising"

LOOK_EVERY_S = 5.0
LOOKS_MIN = 12  # in the time the policy gives, however short that is
PHASES = 10
# A GPU that will slow itself down within this time, and is warm already, is worth a word before.
FORESEEN_S = 120.0
WARM_C = 15.0
# What is foreseen is wrong by so much now and then: GPUs that are meant to run close to their limit warm up daily.
FORESEEN_TOO_HIGH_C = 5.0
# More than any job has; the least recent are forgotten first.
NODES_REMEMBERED = 32_768
GPUS_REMEMBERED = 64  # of a node
SUBJECTS_NAMED = 64

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


class Trend:
    """Where a temperature is going: margins below a limit in degrees Celsius, of a minute, a point in `EVERY_S`.

    Under a new load, and when its cooling fails, a GPU warms up towards a new equilibrium: ever slower, by the
    same factor in equal times. So two lines are laid through the two halves of the last minute, and the second
    half's slope goes on to shrink as it did from the first. A steady rise is a line, as a limiting case. While a
    rise still grows steeper it has only begun, and nothing is said yet.

    Source: Newton's law of cooling, https://en.wikipedia.org/wiki/Newton%27s_law_of_cooling
    """

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


class GpuHeat:
    """How hot one GPU has been, and for how long. Unknown is neither hot nor cool: then `hot_since` and
    `cool_since` are None.
    """

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
        if not tells_heat(sample):
            return
        if at - self.seen_at > SILENCE_S:
            self.hot_since = None
        if at - self.seen_at > 3 * SILENCE_S:
            self.cool_since = self._slowed_s = None
            self.trend = Trend()  # what was before is not known to lead to what comes
        # The share of the time since the last sample for which heat held it down; None when Unknown.
        slowed_ratio = None if sample.throttle is None else float(bool(sample.throttle & HEAT_REASONS))
        if sample.throttled_s is not None and self._slowed_s is not None and at > self.seen_at:
            # A counter that went back was reset with its driver.
            slowed_ratio = max(0.0, sample.throttled_s - self._slowed_s) / (at - self.seen_at)
        self.slowed_ratio, self.margin_c = slowed_ratio, sample.margin_c
        self.seen_at, self._slowed_s = at, sample.throttled_s
        margin_c = math.inf if sample.margin_c is None else sample.margin_c
        if slowed_ratio is not None and slowed_ratio >= SLOWED_RATIO:
            margin_c = -math.inf
        if margin_c > policy.margin_c + COOL_C:
            self.hot_since = None
            self.cool_since = at if self.cool_since is None else self.cool_since
        elif margin_c > policy.margin_c:
            self.hot_since = self.cool_since = None
        else:
            self.cool_since = None
            self.hot_since = at if self.hot_since is None else self.hot_since

    def hot_s(self, now: float) -> float:
        """For how long it has been hot."""
        return 0.0 if self.hot_since is None else now - self.hot_since


def tells_heat(sample: GpuSample) -> bool:
    """Whether it says anything about heat. Without it, that is Unknown."""
    return sample.margin_c is not None or sample.throttle is not None or sample.throttled_s is not None


class Recent(dict[str, float]):
    """Nodes by when each was seen last, the most recent last. O(1) each."""

    def see(self, node: str, at: float) -> None:
        self.pop(node, None)
        self[node] = at

    def since(self, at: float) -> Iterator[str]:
        """The nodes seen at that time or later, the most recent first."""
        return takewhile(lambda node: self[node] >= at, reversed(self))

    def drop_before(self, at: float) -> int:
        """Forget who was seen longer ago; how many are left."""
        while self and self[next(iter(self))] < at:
            del self[next(iter(self))]
        return len(self)


class Rack:
    """Nodes that share their cooling: a rack, or all nodes of which no rack is known: then `name` is empty."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.cause, self.called = (RACK_HOT, f"rack {name}") if name else (NODES_HOT, "the job")
        self.found: str | None = None  # the hottest node when the whole rack was found hot
        # Nodes that tell how hot their GPUs are, those that were hot, and those that were getting hot.
        self.reporting, self.hot, self.rising = Recent(), Recent(), Recent()

    def is_hot(self, now: float) -> bool:
        """Whether so many nodes are hot that it is not the nodes'."""
        self.hot.drop_before(now - CALM_S)
        needed = max(NODES_MIN, math.ceil(self.reporting.drop_before(now - TOGETHER_S) / 2))
        return sum(1 for _ in islice(self.hot.since(now - TOGETHER_S), needed)) >= needed

    def may_become_hot(self, node: str, now: float) -> bool:
        """Whether others in the rack are hot as well, or will be: then it is worth a wait to tell which it is."""
        others = chain(self.hot.since(now - TOGETHER_S), self.rising.since(now - TOGETHER_S))
        # Without a rack there is always somebody, in a large job.
        return bool(self.name) and any(other != node for other in others)


class _Node:
    """What is remembered of one node: when it is looked at next, and its GPUs that are not far from hot.

    `early_s` brings its second look forward, so that nodes that came together are not looked at together for ever.
    """

    __slots__ = ("early_s", "gpus", "look_at")

    def __init__(self, early_s: float) -> None:
        self.early_s = early_s
        self.look_at = float("-inf")
        self.gpus: dict[str, GpuHeat] = {}

    def heat_of(self, sample: GpuSample) -> GpuHeat | None:
        """What is known of a GPU's heat; None when nothing need be: it is far from hot."""
        known, margin_c = self.gpus.get(sample.uuid), sample.margin_c
        is_far = margin_c is not None and margin_c > KEPT_C and not (sample.throttle or 0) & HEAT_REASONS
        if is_far and (known is None or not known.found):
            self.gpus.pop(sample.uuid, None)
            return None
        if known is None and len(self.gpus) < GPUS_REMEMBERED:
            known = self.gpus[sample.uuid] = GpuHeat()
        return known


class ThermalDetector(Detector):
    """Judges the GPU samples of `Reported`."""

    subscribes_to: tuple[type[Sample], ...] = (Reported, Placed)

    def __init__(self, policy: Policy) -> None:
        self._job = policy.job
        self._policy, usual = policy.thermal, ThermalPolicy()
        # Whether a GPU may be too hot for this job that is not for one whose spec says nothing of heat.
        self._own_rule = self._policy.margin_c > usual.margin_c or self._policy.sustained_s < usual.sustained_s
        self._look_every_s = min(LOOK_EVERY_S, policy.thermal.sustained_s / LOOKS_MIN)
        self._nodes: OrderedDict[str, _Node] = OrderedDict()
        self._unplaced = Rack("")
        self._racks: dict[str, Rack] = {}
        self._rack_of: dict[str, Rack] = {}

    def observe(self, sample: Sample, now: float) -> Sequence[Finding | ConditionOver]:
        """Look at the GPUs of a report when it is time to."""
        if isinstance(sample, Placed):
            before = self._rack_of.get(sample.node, self._unplaced)
            if before.name != sample.rack:
                _leave(before, sample.node)
                rack = self._racks.setdefault(sample.rack, Rack(sample.rack)) if sample.rack else self._unplaced
                self._rack_of[sample.node] = rack
        if not isinstance(sample, Reported) or not sample.report.gpus:
            return ()
        name, gpus = sample.report.node, sample.report.gpus
        node = self._nodes.get(name)
        if node is not None and now < node.look_at:
            return ()
        if node is None:
            early_s = self._look_every_s * (len(self._nodes) % PHASES) / PHASES
            node = self._nodes[name] = _Node(early_s)
        self._nodes.move_to_end(name)
        if len(self._nodes) > NODES_REMEMBERED:
            forgotten, _ = self._nodes.popitem(last=False)
            _leave(self._rack_of.get(forgotten, self._unplaced), forgotten)
        return list(self._look(name, node, gpus, now))

    def _look(
        self, name: str, node: _Node, gpus: Sequence[GpuSample], now: float
    ) -> Iterator[Finding | ConditionOver]:
        rack = self._rack_of.get(name, self._unplaced)
        warm = [(sample, heat) for sample in gpus if (heat := node.heat_of(sample)) is not None]
        for sample, heat in warm:
            heat.take(sample, now, self._policy)
        warm = [(sample, heat) for sample, heat in warm if heat.seen_at == now]  # the others are Unknown
        hot = [(sample, heat) for sample, heat in warm if heat.hot_since is not None]
        node.look_at = now + self._look_every_s * (1 if hot else 2) - node.early_s
        node.early_s = 0.0
        if any(map(tells_heat, gpus)):
            rack.reporting.see(name, now)
            if hot:
                rack.hot.see(name, now)
        for sample, heat in hot:
            if not heat.found and heat.hot_s(now) >= self._policy.sustained_s and rack.found is None:
                yield from self._judge_hot(name, rack, sample, heat, now)
        cooled = [
            heat
            for _, heat in warm
            if heat.found and heat.cool_since is not None and now - heat.cool_since >= CALM_S
        ]
        for heat in cooled:
            heat.found = False
        if cooled and not any(heat.found for heat in node.gpus.values()):
            margin_c = self._policy.margin_c + COOL_C
            says = f"its GPUs have been more than {margin_c:.0f} C below slowing down for {CALM_S:.0f} s"
            yield ConditionOver(name, GPU_HOT, says)
        # Only so few were hot for a while that each may be judged by itself again.
        if rack.found is not None and rack.hot.drop_before(now - CALM_S) < NODES_MIN:
            hottest, rack.found = rack.found, None
            says = f"hardly a GPU of {rack.called} was hot for {CALM_S:.0f} s"
            yield ConditionOver(hottest, rack.cause, says)
        for sample, heat in warm:
            yield from self._foresee(name, rack, sample, heat, now)

    def _judge_hot(self, node: str, rack: Rack, sample: GpuSample, heat: GpuHeat, now: float) -> Iterator[Finding]:
        """One GPU has been hot for long enough: it is its own trouble, or its rack's, or that is not clear yet."""
        hot_s, margin_c = heat.hot_s(now), sample.margin_c
        if rack.is_hot(now):
            yield self._rack_finding(rack, now)
        elif hot_s >= self._policy.sustained_s + TOGETHER_S or not rack.may_become_hot(node, now):
            heat.found = True
            says = f"GPU {sample.uuid} has been hot for {hot_s:.0f} s"
            says += "" if sample.temperature_c is None else f", now {sample.temperature_c:.0f} C"
            says += "" if margin_c is None else f", {margin_c:.1f} C below slowing down"
            says += "" if not heat.slowed_ratio else f", held down for heat {heat.slowed_ratio:.0%} of the time"
            evidence = Evidence(f"GPU sensors of node {node}", says, now)
            subjects = (Subject(self._job, node=node, gpu=sample.uuid),)
            yield self._finding(GPU_HOT, subjects, evidence, now - hot_s, ASKS[self._policy.action])

    def _rack_finding(self, rack: Rack, now: float) -> Finding:
        """Names the hottest node first."""
        nodes = tuple(rack.hot.since(now - TOGETHER_S))
        margin_c, since, hottest, gpu = min(
            (math.inf if heat.margin_c is None else heat.margin_c, heat.hot_since, node, gpu)
            for node in nodes
            for gpu, heat in self._nodes[node].gpus.items()
            if heat.hot_since is not None
        )
        rack.found = hottest
        others = islice((node for node in nodes if node != hottest), SUBJECTS_NAMED - 1)
        subjects = (Subject(self._job, node=hottest, gpu=gpu), *(Subject(self._job, node=each) for each in others))
        reporting = rack.reporting.drop_before(now - TOGETHER_S)
        says = f"{len(nodes)} of {reporting} nodes of {rack.called} have a hot GPU"
        says += "" if math.isinf(margin_c) else f", the hottest {margin_c:.1f} C below slowing down"
        evidence = Evidence("GPU sensors", f"{says}: the cooling is suspect", now)
        return self._finding(rack.cause, subjects, evidence, since, XidAction.WATCH)

    def _foresee(self, node: str, rack: Rack, sample: GpuSample, heat: GpuHeat, now: float) -> Iterator[Finding]:
        """A rise is worth a word when it is the first of its episode, and not all of a rack at once."""
        margin_c = sample.margin_c
        if margin_c is None or heat.hot_since is not None or not heat.trend.take(margin_c, now):
            return
        rise_c = heat.trend.rises_by(FORESEEN_S) if margin_c <= WARM_C else None
        if rise_c is None or rise_c < margin_c + FORESEEN_TOO_HIGH_C:
            return
        others = rack.rising.drop_before(now - CALM_S)
        is_first = node not in rack.rising and others < NODES_MIN
        rack.rising.see(node, now)
        if is_first:
            rises = f"about to rise by {rise_c:.1f} C in {FORESEEN_S:.0f} s"
            says = f"GPU {sample.uuid} is {margin_c:.1f} C below slowing down and {rises}"
            evidence = Evidence(f"GPU sensors of node {node}", says, now)
            subjects = (Subject(self._job, node=node, gpu=sample.uuid),)
            yield self._finding(RISING, subjects, evidence, now, XidAction.WATCH)

    def _finding(
        self, cause: str, subjects: Sequence[Subject], evidence: Evidence, began_at: float, asks: XidAction
    ) -> Finding:
        subject, *also = subjects
        return Finding(
            kind=FindingKind.THERMAL,
            subject=subject,
            cause=cause,
            evidence=(evidence,),
            confidence=Confidence.CERTAIN if cause == GPU_HOT else Confidence.UNKNOWN,
            began_at=began_at,
            error=evidence.says,
            also=tuple(also),
            asks=asks,
            own_rule=self._own_rule,
        )


def _leave(rack: Rack, node: str) -> None:
    for seen in (rack.reporting, rack.hot, rack.rising):
        seen.pop(node, None)
