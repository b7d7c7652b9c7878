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
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from holdfast.api.event import ConditionOver
from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.policy import Policy, ThermalPolicy, XidAction
from holdfast.api.telemetry import GpuSample, NodeReport
from holdfast.watchdog.detectors.detector import ASKS, Detector, Placed, Reported, Sample
from holdfast.watchdog.detectors.heat import CALM_S, COOL_C, TOGETHER_S, GpuHeat, Rack, is_far_from_hot, tells_heat

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
        """What is known of a GPU's heat; None when nothing need be."""
        known = self.gpus.get(sample.uuid)
        if known is None:
            if is_far_from_hot(sample) or len(self.gpus) >= GPUS_REMEMBERED:
                return None
            known = self.gpus[sample.uuid] = GpuHeat()
        elif not known.found and is_far_from_hot(sample):
            del self.gpus[sample.uuid]
            return None
        return known


class ThermalDetector(Detector):
    """Judges the GPU samples of `Reported`."""

    subscribes_to: tuple[type[Sample], ...] = (Reported, Placed)

    def __init__(self, policy: Policy) -> None:
        self._job = policy.job
        self._policy = policy.thermal
        self._look_every_s = min(LOOK_EVERY_S, policy.thermal.sustained_s / LOOKS_MIN)
        self._nodes: OrderedDict[str, _Node] = OrderedDict()
        self._unplaced = Rack("")
        self._racks: dict[str, Rack] = {}
        self._rack_of: dict[str, Rack] = {}

    def observe(self, sample: Sample, now: float) -> Sequence[Finding | ConditionOver]:
        """Look at the GPUs of a report when it is time to."""
        if isinstance(sample, Reported):
            report = sample.report
            node = self._nodes.get(report.node)
            if (node is not None and now < node.look_at) or not report.gpus:
                return ()
            return list(self._look(report, self._remembered(report.node), now))
        if isinstance(sample, Placed):
            self._place(sample)
        return ()

    def _look(self, report: NodeReport, node: _Node, now: float) -> Iterator[Finding | ConditionOver]:
        rack = self._rack_of.get(report.node, self._unplaced)
        warm = [(sample, heat) for sample in report.gpus if (heat := node.heat_of(sample)) is not None]
        for sample, heat in warm:
            heat.take(sample, now, self._policy)
        warm = [(sample, heat) for sample, heat in warm if heat.seen_at == now]  # the others are Unknown
        hot = [(sample, heat) for sample, heat in warm if heat.hot_since is not None]
        node.look_at = now + self._look_every_s * (1 if hot else 2) - node.early_s
        node.early_s = 0.0
        if any(map(tells_heat, report.gpus)):
            rack.look(report.node, hot=bool(hot), at=now)
        yield from self._judge_hot(report.node, rack, hot, now)
        yield from self._judge_cool(report.node, node, rack, [heat for _, heat in warm], now)
        yield from self._foresee(report.node, rack, warm, now)

    def _judge_hot(
        self, node: str, rack: Rack, hot: Iterable[tuple[GpuSample, GpuHeat]], now: float
    ) -> Iterator[Finding]:
        sustained_s = self._policy.sustained_s
        for sample, heat in hot:
            if heat.found or heat.hot_s(now) < sustained_s or rack.found is not None:
                continue
            if rack.is_hot(now):
                yield self._rack_finding(rack, now)
            elif heat.hot_s(now) >= sustained_s + TOGETHER_S or not rack.may_become_hot(node, now):
                heat.found = True
                yield self._finding(
                    GPU_HOT,
                    (Subject(self._job, node=node, gpu=sample.uuid),),
                    (_evidence(node, sample, heat, now),),
                    began_at=now - heat.hot_s(now),
                    asks=ASKS[self._policy.action],
                )

    def _judge_cool(
        self, name: str, node: _Node, rack: Rack, warm: Iterable[GpuHeat], now: float
    ) -> Iterator[ConditionOver]:
        margin_c = self._policy.margin_c + COOL_C
        cooled = [heat for heat in warm if heat.found and heat.cool_s(now) >= CALM_S]
        for heat in cooled:
            heat.found = False
        if cooled and not any(heat.found for heat in node.gpus.values()):
            says = f"its GPUs have been more than {margin_c:.0f} C below slowing down for {CALM_S:.0f} s"
            yield ConditionOver(name, GPU_HOT, says)
        if rack.found is not None and rack.is_calm(now):
            hottest, rack.found = rack.found, None
            yield ConditionOver(
                hottest, _cause(rack), f"hardly a GPU of {_named(rack)} was hot for {CALM_S:.0f} s"
            )

    def _foresee(
        self, node: str, rack: Rack, warm: Iterable[tuple[GpuSample, GpuHeat]], now: float
    ) -> Iterator[Finding]:
        for sample, heat in warm:
            margin_c = sample.margin_c
            if margin_c is None or heat.hot_since is not None or not heat.trend.take(margin_c, now):
                continue
            rise_c = heat.trend.rises_by(FORESEEN_S) if margin_c <= WARM_C else None
            if rise_c is None or rise_c < margin_c + FORESEEN_TOO_HIGH_C:
                continue
            if rack.begins_to_rise(node, now):
                rises = f"about to rise by {rise_c:.1f} C in {FORESEEN_S:.0f} s"
                says = f"GPU {sample.uuid} is {margin_c:.1f} C below slowing down and {rises}"
                evidence = (Evidence(f"GPU sensors of node {node}", says, now),)
                subjects = (Subject(self._job, node=node, gpu=sample.uuid),)
                yield self._finding(RISING, subjects, evidence, began_at=now, asks=XidAction.WATCH)

    def _rack_finding(self, rack: Rack, now: float) -> Finding:
        """Names the hottest node first."""
        nodes = rack.hot_nodes(now)
        hot = [
            (math.inf if heat.margin_c is None else heat.margin_c, heat.hot_since, node, gpu)
            for node in nodes
            for gpu, heat in self._nodes[node].gpus.items()
            if heat.hot_since is not None
        ]
        margin_c, since, hottest, gpu = min(hot)
        rack.found = hottest
        others = islice((node for node in nodes if node != hottest), SUBJECTS_NAMED - 1)
        which = f"{len(nodes)} of {rack.reporting(now)} nodes of {_named(rack)} have a hot GPU"
        how_hot = "" if math.isinf(margin_c) else f", the hottest {margin_c:.1f} C below slowing down"
        return self._finding(
            _cause(rack),
            (Subject(self._job, node=hottest, gpu=gpu), *(Subject(self._job, node=each) for each in others)),
            (Evidence("GPU sensors", f"{which}{how_hot}: the cooling is suspect", now),),
            began_at=since,
            asks=XidAction.WATCH,
        )

    def _finding(
        self,
        cause: str,
        subjects: tuple[Subject, ...],
        evidence: tuple[Evidence, ...],
        *,
        began_at: float,
        asks: XidAction,
    ) -> Finding:
        subject, *also = subjects
        return Finding(
            kind=FindingKind.THERMAL,
            subject=subject,
            cause=cause,
            evidence=evidence,
            confidence=Confidence.CERTAIN if cause == GPU_HOT else Confidence.UNKNOWN,
            began_at=began_at,
            error=evidence[-1].says,
            also=tuple(also),
            asks=asks,
            own_rule=_is_stricter(self._policy),
        )

    def _remembered(self, name: str) -> _Node:
        node = self._nodes.get(name)
        if node is None:
            early_s = self._look_every_s * (len(self._nodes) % PHASES) / PHASES
            node = self._nodes[name] = _Node(early_s)
        self._nodes.move_to_end(name)
        if len(self._nodes) > NODES_REMEMBERED:
            forgotten, _ = self._nodes.popitem(last=False)
            self._rack_of.get(forgotten, self._unplaced).forget(forgotten)
        return node

    def _place(self, placed: Placed) -> None:
        before = self._rack_of.get(placed.node, self._unplaced)
        if before.name == placed.rack:
            return
        before.forget(placed.node)
        rack = self._racks.setdefault(placed.rack, Rack(placed.rack)) if placed.rack else self._unplaced
        self._rack_of[placed.node] = rack


def _is_stricter(policy: ThermalPolicy) -> bool:
    """Whether a GPU may be too hot for this job that is not for one whose spec says nothing of heat."""
    usual = ThermalPolicy()
    return policy.margin_c > usual.margin_c or policy.sustained_s < usual.sustained_s


def _cause(rack: Rack) -> str:
    return RACK_HOT if rack.name else NODES_HOT


def _named(rack: Rack) -> str:
    return f"rack {rack.name}" if rack.name else "the job"


def _evidence(node: str, sample: GpuSample, heat: GpuHeat, now: float) -> Evidence:
    margin_c, temperature_c = sample.margin_c, sample.temperature_c
    says = f"GPU {sample.uuid} has been hot for {heat.hot_s(now):.0f} s"
    says += "" if temperature_c is None else f", now {temperature_c:.0f} C"
    says += "" if margin_c is None else f", {margin_c:.1f} C below slowing down"
    says += "" if not heat.slowed_ratio else f", held down for heat {heat.slowed_ratio:.0%} of the time"
    return Evidence(f"GPU sensors of node {node}", says, now)
