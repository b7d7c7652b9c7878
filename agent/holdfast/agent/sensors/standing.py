"""The conditions one source has raised and cleared: keeps since when, and what of it to report."""

from dataclasses import dataclass
from typing import Final

from holdfast.api.condition import Condition, ConditionKind, ConditionState

# A report that is lost is made good by the next: so long every report says that it is over.
CLEARED_KEPT_S: Final = 60.0
# A sick node raises some dozen. Past the bound nothing more is raised, as the first ones name the cause.
KEPT_MAX: Final = 512


@dataclass(frozen=True, slots=True)
class _Standing:
    state: ConditionState
    since: float
    says: str


class StandingConditions:
    """Pure: `now` is CLOCK_MONOTONIC in seconds. `gpu` and `device` as in `Condition`."""

    def __init__(self) -> None:
        self._standing: dict[tuple[ConditionKind, str, str], _Standing] = {}

    def hold(self, kind: ConditionKind, says: str, now: float, *, gpu: str = "", device: str = "") -> None:
        """It holds. Said again it keeps its age, and only what it says is replaced."""
        key = (kind, gpu, device)
        before = self._standing.get(key)
        if before is None and len(self._standing) >= KEPT_MAX:
            return
        raised = before is not None and before.state is ConditionState.RAISED
        since = before.since if before is not None and raised else now
        self._standing[key] = _Standing(ConditionState.RAISED, since, says)

    def clear(self, kind: ConditionKind, says: str, now: float, *, gpu: str = "", device: str = "") -> None:
        """It is over. What does not hold stays as it is."""
        if self.holds(kind, gpu=gpu, device=device):
            self._standing[kind, gpu, device] = _Standing(ConditionState.CLEARED, now, says)

    def holds(self, kind: ConditionKind, *, gpu: str = "", device: str = "") -> bool:
        """Whether it was raised and not cleared since."""
        standing = self._standing.get((kind, gpu, device))
        return standing is not None and standing.state is ConditionState.RAISED

    def report(self, now: float) -> tuple[Condition, ...]:
        """All that hold, and what was cleared less than a minute ago. What is older is forgotten."""
        for key, standing in tuple(self._standing.items()):
            if standing.state is ConditionState.CLEARED and now - standing.since > CLEARED_KEPT_S:
                del self._standing[key]
        return tuple(
            Condition(kind, standing.state, max(0.0, now - standing.since), standing.says, gpu, device)
            for (kind, gpu, device), standing in self._standing.items()
        )
