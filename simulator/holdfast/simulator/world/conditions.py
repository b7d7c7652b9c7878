"""What is wrong with a node for a while, as its agent tells: conditions that hold, and a GPU that is hot."""

import msgspec

from holdfast.api.condition import Condition, ConditionKind, ConditionState
from holdfast.api.telemetry import GpuHealth, GpuSample, NodeReport

CLEARED_FOR_S = 60.0  # so long a condition that is over is told of
HOT_C, COOL_C = -1.0, 40.0  # what is left before the GPU slows itself down


class NodeConditions:
    """One node's. A condition is told of in every report while it holds, and for a while after it is over."""

    def __init__(self, gpu: str) -> None:
        self._gpu = gpu
        self._held: dict[ConditionKind, tuple[float, float]] = {}  # from when until when
        self._hot_until: float | None = None

    def hold(self, kind: ConditionKind, now: float, seconds: float) -> None:
        """The condition holds from now on, for so long."""
        self._held[kind] = (now, now + seconds)

    def heat(self, until: float) -> None:
        """The GPU is hot until then, cool afterwards."""
        self._hot_until = until

    @property
    def is_quiet(self) -> bool:
        """Whether nothing was ever wrong."""
        return not self._held and self._hot_until is None

    def added_to(self, report: NodeReport, now: float) -> NodeReport:
        """The report with what holds, and how hot the GPU is."""
        if self.is_quiet:
            return report
        told = tuple(
            self._told(kind, since, until, now)
            for kind, (since, until) in self._held.items()
            if now < until + CLEARED_FOR_S
        )
        gpus: tuple[GpuSample, ...] = ()
        if self._hot_until is not None:
            margin_c = HOT_C if now < self._hot_until else COOL_C
            gpus = (GpuSample(self._gpu, 0, GpuHealth.HEALTHY, temperature_c=90.0 - margin_c, margin_c=margin_c),)
        return msgspec.structs.replace(report, conditions=told, gpus=gpus)

    def _told(self, kind: ConditionKind, since: float, until: float, now: float) -> Condition:
        if now < until:
            return Condition(kind, ConditionState.RAISED, now - since, "simulated", gpu=self._gpu)
        return Condition(kind, ConditionState.CLEARED, now - until, "simulated", gpu=self._gpu)
