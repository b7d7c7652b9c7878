"""The conditions one source has raised and cleared: keeps since when, and what of it to report."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from holdfast.api.condition import AllClear, Condition, ConditionKind, ConditionState

# A report that is lost is made good by the next: so long every report says that it is over.
CLEARED_KEPT_S: Final = 60.0
# A sick node raises some dozen. Past the bound nothing more is raised, as the first ones name the cause.
KEPT_MAX: Final = 512
# Of a kind whose rule is not yet met on more parts than these nothing is said: the list would fill the report.
OPEN_TOLD_MAX: Final = 16


class Held(msgspec.Struct, frozen=True):
    """One condition as it is remembered over a restart. `since` is CLOCK_MONOTONIC in seconds, of its boot.

    `measure` is what its rule compares with, where that has to be remembered too.
    """

    kind: ConditionKind
    says: str
    since: float
    gpu: str = ""
    device: str = ""
    measure: float | None = None


@dataclass(frozen=True, slots=True)
class _Standing:
    state: ConditionState
    since: float
    says: str


class StandingConditions:
    """Pure: `now` is CLOCK_MONOTONIC in seconds. `gpu` and `device` as in `Condition`, both together are a part.

    Whoever judges a part says at each look which of the three it is: it holds, it is over by its rule, or neither.
    """

    def __init__(self) -> None:
        self._standing: dict[tuple[ConditionKind, str, str], _Standing] = {}
        self._over: dict[ConditionKind, set[tuple[str, str]]] = {}  # the parts on which the rule was met
        self._open: dict[ConditionKind, set[tuple[str, str]]] = {}  # those on which it was not

    def hold(self, kind: ConditionKind, says: str, now: float, *, gpu: str = "", device: str = "") -> None:
        """It holds. Said again it keeps its age, and only what it says is replaced."""
        key = (kind, gpu, device)
        self._over.get(kind, set()).discard((gpu, device))
        self._open.setdefault(kind, set()).add((gpu, device))
        before = self._standing.get(key)
        if before is None and len(self._standing) >= KEPT_MAX:
            return
        raised = before is not None and before.state is ConditionState.RAISED
        since = before.since if before is not None and raised else now
        self._standing[key] = _Standing(ConditionState.RAISED, since, says)

    def clear(self, kind: ConditionKind, says: str, now: float, *, gpu: str = "", device: str = "") -> None:
        """It is over by its rule. What does not hold stays as it is."""
        self._open.get(kind, set()).discard((gpu, device))
        self._over.setdefault(kind, set()).add((gpu, device))
        if self.holds(kind, gpu=gpu, device=device):
            self._standing[kind, gpu, device] = _Standing(ConditionState.CLEARED, now, says)

    def doubt(self, kind: ConditionKind, *, gpu: str = "", device: str = "") -> None:
        """Its rule says neither now. A part on which it was met before, and that was not raised since, is well."""
        if (gpu, device) not in self._over.get(kind, set()):
            self._open.setdefault(kind, set()).add((gpu, device))

    def take_up(self, held: Iterable[Held]) -> None:
        """What an earlier run had raised holds until it is cleared. Called before anything is judged."""
        for each in held:
            self.hold(each.kind, each.says, each.since, gpu=each.gpu, device=each.device)

    def held(self) -> tuple[Held, ...]:
        """What holds, to be remembered."""
        return tuple(
            Held(kind, standing.says, round(standing.since, 3), gpu, device)
            for (kind, gpu, device), standing in self._standing.items()
            if standing.state is ConditionState.RAISED
        )

    def all_clear(self) -> tuple[AllClear, ...]:
        """The kinds whose rule was met on some part since the start, each with the parts on which it was not."""
        met = {kind: tuple(sorted(self._open.get(kind, ()))) for kind, parts in self._over.items() if parts}
        return tuple(AllClear(kind, but) for kind, but in met.items() if len(but) <= OPEN_TOLD_MAX)

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
