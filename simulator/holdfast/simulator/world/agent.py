"""A node's agent: what it reports of the ranks on the node, and of what is wrong with the node for a while."""

from typing import Final

from holdfast.api.condition import Condition, ConditionKind, ConditionState
from holdfast.api.telemetry import GpuHealth, GpuSample, NodeEvent, NodeReport, RankSample
from holdfast.simulator.world.line import Line
from holdfast.watchdog.detectors.detector import Reported

CLEARED_FOR_S: Final = 60.0  # so long a condition that is over is told of
HOT_C, COOL_C = -1.0, 40.0  # what is left before the GPU slows itself down


class Agent:
    """A condition is told of in every report while it holds, and for a while after it is over."""

    def __init__(self, node: str, gpu: str, line: Line) -> None:
        self._node, self._gpu, self._line = node, gpu, line
        self._reports = 0
        self._held: dict[ConditionKind, tuple[float, float]] = {}  # from when until when
        self._hot_until: float | None = None

    def hold(self, kind: ConditionKind, now: float, seconds: float) -> None:
        """The condition holds from now on, for so long."""
        self._held[kind] = (now, now + seconds)

    def heat(self, until: float) -> None:
        """The GPU is hot until then, cool afterwards."""
        self._hot_until = until

    def report(self, boot: str, ranks: tuple[RankSample, ...], events: tuple[NodeEvent, ...]) -> None:
        """Say how everything is now."""
        self._reports += 1
        now = self._line.agenda.now
        report = NodeReport(
            self._node,
            boot,
            self._reports,
            ranks=ranks,
            events=events,
            conditions=self._conditions(now),
            gpus=self._gpus(now),
        )
        self._line.send(lambda: self._line.watchdog.observe(Reported(report)))

    def _conditions(self, now: float) -> tuple[Condition, ...]:
        if not self._held:
            return ()
        return tuple(
            self._told(kind, since, until, now)
            for kind, (since, until) in self._held.items()
            if now < until + CLEARED_FOR_S
        )

    def _told(self, kind: ConditionKind, since: float, until: float, now: float) -> Condition:
        if now < until:
            return Condition(kind, ConditionState.RAISED, now - since, "simulated", gpu=self._gpu)
        return Condition(kind, ConditionState.CLEARED, now - until, "simulated", gpu=self._gpu)

    def _gpus(self, now: float) -> tuple[GpuSample, ...]:
        if self._hot_until is None:
            return ()
        margin_c = HOT_C if now < self._hot_until else COOL_C
        return (GpuSample(self._gpu, 0, GpuHealth.HEALTHY, temperature_c=90.0 - margin_c, margin_c=margin_c),)
