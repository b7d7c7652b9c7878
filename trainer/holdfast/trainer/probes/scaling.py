"""Scaling factors: FP8's by layer and over time, and the loss scale of FP16, as a script tells of them.

    watch = ScalingWatch()
    watch.update("blocks.0.mlp", amax, scale, torch.float8_e4m3fn)      # at every step, for every scaled tensor
    for answer in watch.answers(): print(answer.verdict, answer.says)   # now and then

Source: https://arxiv.org/abs/2209.05433 (the formats); https://arxiv.org/abs/2409.12517 (activations whose maxima
grow until FP8 training diverges, late in a run).
"""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from holdfast.api.audit import Probe, ProbeAnswer, Soundness
from holdfast.api.errors import InvalidInput, Problem

Amount = float | Tensor
FORMATS: Final = tuple(
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float16", "bfloat16")
)
PENDING_MAX: Final = 256
"""So many updates are kept as they come and then looked at together: the device is waited for once in as many."""
SATURATED_MAX: Final = 0.01
"""Share of updates. A scale that follows the last maxima is too large at a step with a new one; that is rare."""
BINADES_MIN: Final = 4.0
"""So many powers of two of normal numbers below the largest value, at least: what is 16 times smaller than it
keeps all its digits."""
TREND_MIN: Final = 16
"""Updates before a growth is believed."""
EXPLAINED_MIN: Final = 0.5
"""Share of the variance of the logarithm that a steady growth explains, at least."""


@dataclass(slots=True)
class _Layer:
    """Sums over the updates of one layer. `level` is log2(amax x scale / the format's largest): 0 is the edge."""

    format: torch.dtype
    count: int = 0
    saturated: int = 0
    low: int = 0
    broken: int = 0
    peak: float = -math.inf
    first_saturated: int | None = None
    # Of (number of the update, level): means and central moments, as Welford has them.
    seen: int = 0
    mean_at: float = 0.0
    mean_level: float = 0.0
    at_at: float = 0.0
    at_level: float = 0.0
    level_level: float = 0.0

    def take(self, amax: float, scale: float) -> None:
        limits = torch.finfo(self.format)
        self.count += 1
        value = amax * scale
        if not math.isfinite(value) or scale <= 0.0 or amax < 0.0:
            self.broken += 1
            return
        if value == 0.0:
            return  # nothing was there to scale
        level = math.log2(value / limits.max)
        self.peak = max(self.peak, level)
        self.low += value < limits.smallest_normal * 2.0**BINADES_MIN
        if level > 0.0:
            self.saturated += 1
            self.first_saturated = self.count if self.first_saturated is None else self.first_saturated
        self.seen += 1
        at, up = self.count - self.mean_at, level - self.mean_level
        self.mean_at += at / self.seen
        self.mean_level += up / self.seen
        self.at_at += at * (self.count - self.mean_at)
        self.at_level += at * (level - self.mean_level)
        self.level_level += up * (level - self.mean_level)

    def growth(self) -> float:
        """Doublings per update, where the level grows steadily; else 0."""
        if self.seen < TREND_MIN or not self.at_at or not self.level_level:
            return 0.0
        explained = self.at_level**2 / (self.at_at * self.level_level)
        return self.at_level / self.at_at if explained >= EXPLAINED_MIN else 0.0

    def updates_left(self) -> float:
        """Until the level is that of the edge, as it grows now; infinite when it does not grow."""
        growth = self.growth()
        now = self.mean_level + growth * (self.count - self.mean_at)
        return max(0.0, -now / growth) if growth > 0.0 else math.inf


class ScalingWatch:
    """Largest values and scales of tensors in a narrow format, by layer, while a script trains.

    `update` takes about a microsecond and does not wait for the device, but once in `PENDING_MAX` times.
    """

    def __init__(self) -> None:
        self._layers: dict[str, _Layer] = {}
        self._pending: list[tuple[_Layer, Amount, Amount]] = []

    def update(self, layer: str, amax: Amount, scale: Amount, format: torch.dtype) -> None:
        """`amax` is the largest magnitude, `scale` what it is multiplied with before it is cast to `format`.

        Both are numbers or tensors of one element, which are copied. Raises InvalidInput when the format is none,
        or is another one than before.
        """
        there = self._layers.get(layer)
        if there is None:
            if format not in FORMATS:
                known = ", ".join(str(each) for each in FORMATS)
                raise InvalidInput(Problem("format", format, f"write one of {known}"))
            there = self._layers[layer] = _Layer(format)
        elif there.format != format:
            raise InvalidInput(Problem("format", format, f"{layer} was {there.format} before; name another layer"))
        self._pending.append((there, _kept(amax), _kept(scale)))
        if len(self._pending) >= PENDING_MAX:
            self._fold()

    def answers(self) -> tuple[ProbeAnswer, ...]:
        """One answer for each layer that is suspect or unreadable; else one of the layer nearest to the edge.

        The figure is how many powers of two lie between the largest scaled value and the format's largest number.
        """
        self._fold()
        if not any(each.seen or each.broken for each in self._layers.values()):
            return (
                ProbeAnswer.unknown(
                    Probe.SCALING, "no largest value was told", "call update for each tensor that is scaled"
                ),
            )
        told = [_scaling_answer(name, each) for name, each in self._layers.items()]
        suspect = tuple(each for each in told if each.verdict is not Soundness.SOUND)
        return suspect or (min(told, key=lambda each: math.inf if each.figure is None else each.figure),)

    def _fold(self) -> None:
        pending, self._pending = self._pending, []
        numbers = _numbers([each for _, amax, scale in pending for each in (amax, scale)])
        for at, (layer, _, _) in enumerate(pending):
            layer.take(numbers[2 * at], numbers[2 * at + 1])


def _kept(value: Amount) -> Amount:
    """A copy: a history of maxima is written over at the next step."""
    return value.detach().reshape(()).clone() if isinstance(value, Tensor) else float(value)


def _numbers(values: list[Amount]) -> list[float]:
    """All of them, with one transfer for each device."""
    found = [each if isinstance(each, float) else 0.0 for each in values]
    places: dict[torch.device, list[int]] = {}
    for at, each in enumerate(values):
        if isinstance(each, Tensor):
            places.setdefault(each.device, []).append(at)
    for device, there in places.items():
        stacked = torch.stack([torch.as_tensor(values[at], device=device).float() for at in there])
        for at, number in zip(there, stacked.tolist(), strict=True):
            found[at] = number
    return found


def _scaling_answer(name: str, layer: _Layer) -> ProbeAnswer:
    kind = str(layer.format).removeprefix("torch.")
    if not layer.seen and not layer.broken:
        return ProbeAnswer(
            probe=Probe.SCALING,
            verdict=Soundness.UNKNOWN,
            says=f"{layer.count} updates, all of them 0",
            where=name,
            change="look whether the layer is used, and whether its largest value is told after it was computed",
        )
    says, change = "", ""
    left = layer.updates_left()
    if layer.broken:
        says = f"{layer.broken} of {layer.count} updates are not finite, or have no scale above 0"
        change = "look for the first tensor that overflows: its scale is no help any more"
    elif layer.saturated > SATURATED_MAX * layer.count:
        beyond = f"{layer.saturated} of {layer.count} updates are beyond {kind}'s largest number"
        says = f"{beyond}, the first was number {layer.first_saturated}"
        change = (
            "scale by the current maximum or add a margin; bound the layer's activation, or keep it in bfloat16"
        )
    elif layer.low > layer.seen / 2:
        says = f"in {layer.low} of {layer.count} updates even the largest value is near {kind}'s smallest"
        change = "scale so that the largest value is near the format's largest number"
    elif left < layer.count:
        says = (
            f"grows by a factor of 2 in {1 / layer.growth():.3g} updates, and reaches {kind}'s edge in {left:.3g}"
        )
        change = "let the scale follow the maximum; look for what makes it grow (weight decay, gated activations)"
    return ProbeAnswer(
        probe=Probe.SCALING,
        verdict=Soundness.SUSPECT if says else Soundness.SOUND,
        figure=-layer.peak if layer.seen else None,
        unit="powers of two to the edge",
        says=says or f"{layer.count} updates in {kind}, {layer.saturated} beyond its largest number",
        where=name,
        change=change,
    )


SKIPPED_MAX: Final = 0.01
"""Share of steps. A scaler that doubles every 2000 steps and halves at an overflow skips about 1 in 2000.
Source: https://docs.pytorch.org/docs/stable/amp.html (GradScaler: growth_interval)."""
REMEMBERED: Final = 1000
SETTLING: Final = 50
"""Steps at the start in which a scale may come down from its initial 65,536."""
SCALE_MIN: Final = 1.0


@dataclass(slots=True)
class LossScaleWatch:
    """The loss scale of training in float16, and the steps that were left out for an overflow."""

    _count: int = field(default=0, init=False)
    _scale: float | None = field(default=None, init=False)
    _recent: deque[bool] = field(default_factory=lambda: deque(maxlen=REMEMBERED), init=False)

    def update(self, scale: float, *, skipped: bool) -> None:
        """At each step: the scale after it, and whether the optimizer was left out."""
        self._count += 1
        self._scale = float(scale)
        if self._count > SETTLING:
            self._recent.append(skipped)

    def answers(self) -> tuple[ProbeAnswer, ...]:
        """One answer: the share of the last `REMEMBERED` steps that were skipped, and the scale."""
        if self._scale is None or not self._recent:
            says = f"{self._count} steps told, of which the first {SETTLING} do not count"
            return (ProbeAnswer.unknown(Probe.SCALING, says, "call update at each step, and ask later"),)
        share = sum(self._recent) / len(self._recent)
        says = f"{sum(self._recent)} of the last {len(self._recent)} steps skipped, scale {self._scale:g}"
        change = ""
        if self._scale < SCALE_MIN or not math.isfinite(self._scale):
            change = "gradients overflow without any scale: look for the layer that is not finite, or use bfloat16"
        elif share > SKIPPED_MAX:
            change = "use a longer growth_interval; if skips go on, look for the layer whose gradients overflow"
        answer = ProbeAnswer(
            probe=Probe.SCALING,
            verdict=Soundness.SUSPECT if change else Soundness.SOUND,
            figure=share,
            unit="of steps skipped",
            says=says,
            change=change,
        )
        return (answer,)
