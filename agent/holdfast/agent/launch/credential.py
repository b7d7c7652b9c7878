"""The token a launcher shows to the watchdog, and for how long it goes on after the watchdog has refused it."""

from dataclasses import dataclass, field
from pathlib import Path

from holdfast.agent.bearer import read_token

REFUSED_PATIENCE_S = 60.0
"""How long training goes on with a token that was good before. The kubelet renews a token after 80% of its life,
so one that is refused is rarely old: it is those who review tokens that are in trouble, and they may recover.
Source: https://kubernetes.io/docs/tasks/configure-pod-container/configure-service-account/"""


@dataclass(frozen=True, slots=True)
class Credential:
    """Where the token comes from: exactly one of the two."""

    token: str = field(default="", repr=False)
    file: Path | None = None

    def read(self) -> str:
        """The token to show now; a file is read anew, because tokens in it expire. Raises Unavailable."""
        return self.token if self.file is None else read_token(str(self.file))


@dataclass(slots=True)
class Refusals:
    """The refusals in a row. Times are seconds on the launcher's monotonic clock."""

    patience_s: float = REFUSED_PATIENCE_S
    _was_welcome: bool = False
    _since: float | None = None

    def welcomed(self) -> None:
        """The watchdog took the token."""
        self._was_welcome, self._since = True, None

    def is_final(self, refused: str, current: str, now: float) -> bool:
        """Whether trying again is of no use: `refused` was turned away now, `current` is what would be shown next.

        A launcher that was never welcome says so at once, as that is somebody's mistake at the start.
        """
        if refused != current:
            return False
        self._since = now if self._since is None else self._since
        return not self._was_welcome or now - self._since >= self.patience_s
