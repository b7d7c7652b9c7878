"""How far a gradient norm may go: what clips it, and what leaves its step out.

One batch in many thousands has a gradient a hundred times as large as usual, and clipped it still points where it
should not. What is usual changes as a model learns, so that it is learned along the way, from norms as they were
clipped. The estimates are part of the state: with them a run that goes back decides as it did before.
Sources: https://arxiv.org/abs/2504.02507 (moving averages of decay 0.97, 25 steps of warm-up);
https://arxiv.org/abs/2204.02311 section 5.1 (which batches are worth leaving out).
"""

import math
from typing import Any, Final

from holdfast.api.control import Assignment

DECAY: Final = 0.97
WARM_UP_STEPS: Final = 25
SKIPS_IN_A_ROW_MAX: Final = 8
"""So many steps left out in a row are no spike: the norm is so now, and the next one is made, clipped."""


class SpikeGuard:
    """The limits of one training loop's gradient norm, as it is over all ranks. Make it with the model; hand it to
    `Run.should_skip`, and to the `Checkpointer` as one of its `extra`.

    What the job says in its `faultPolicy.loss` comes before what is given here.

    Args:
        part: this process's part in the round, which has what the job says; None: nothing.
        skip_above: a step whose norm is more than so many times the running mean is left out; infinity: none is.
        deviations: `max_norm` is the running mean plus so many standard deviations,
        least: but never less than this. Until it is known what is usual, it is clipped here.

    Raises ValueError for limits that are not above 0.
    """

    def __init__(
        self,
        part: Assignment | None = None,
        *,
        skip_above: float = 20.0,
        deviations: float = 4.0,
        least: float = 1.0,
    ) -> None:
        if part is not None and (said := part.spikes) is not None:
            skip_above = skip_above if said.skip_above is None else said.skip_above
            deviations = deviations if said.deviations is None else said.deviations
        for name, value in (("skip_above", skip_above), ("deviations", deviations), ("least", least)):
            if not value > 0.0:
                raise ValueError(f"{name}: {value} is not accepted; write a number above 0")
        self._skip_above, self._deviations, self._least = skip_above, deviations, least
        self._mean = self._variance = 0.0
        self._seen = self._row = 0

    @property
    def max_norm(self) -> float:
        """What to clip the gradients at, as `torch.nn.utils.clip_grad_norm_` takes it."""
        if self._seen < WARM_UP_STEPS:
            return self._least
        return max(self._least, self._mean + self._deviations * math.sqrt(self._variance))

    def is_spike(self, norm: float) -> bool:
        """Whether a step with this norm, before it was clipped, is to be left out."""
        is_known = self._seen >= WARM_UP_STEPS and self._row < SKIPS_IN_A_ROW_MAX
        return is_known and norm > self._skip_above * self._mean

    def learn(self, norm: float, *, skipped: bool) -> None:
        """What became of a step with this norm. One that was left out teaches nothing."""
        if skipped:
            self._row += 1
            return
        taken = min(norm, self.max_norm) if self._seen >= WARM_UP_STEPS else norm
        # The first ones weigh alike, as in a plain mean, until there are as many as the decay remembers.
        weight = max(1.0 - DECAY, 1.0 / (self._seen + 1))
        away = taken - self._mean
        self._mean += weight * away
        self._variance = (1.0 - weight) * (self._variance + weight * away * away)
        self._seen, self._row = self._seen + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """The running estimates."""
        return {"mean": self._mean, "variance": self._variance, "seen": self._seen, "row": self._row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from these estimates."""
        self._mean, self._variance = float(state["mean"]), float(state["variance"])
        self._seen, self._row = int(state["seen"]), int(state["row"])
