"""The token that is shown to the watchdog, and for how long it goes on being shown after a refusal."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from holdfast.api.errors import Unavailable

_FILE_BYTES_MAX: Final = 16384  # service-account tokens are one to two kilobytes


def read_token(path: Path | str) -> str:
    """The first word of the file: roles may follow it. Raises Unavailable."""
    try:
        with open(path, "rb") as file:
            words = file.read(_FILE_BYTES_MAX).split(maxsplit=1)
        if words:
            return words[0].decode("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise Unavailable(f"the token file {path} cannot be read: {error}") from error
    raise Unavailable(f"the token file {path} is empty")


@dataclass(frozen=True, slots=True)
class Credential:
    """Where the token comes from: exactly one of the two."""

    token: str = field(default="", repr=False)
    file: Path | None = None

    def read(self) -> str:
        """The token to show now; a file is read anew, because tokens in it expire. Raises Unavailable."""
        return self.token if self.file is None else read_token(self.file)


@dataclass(slots=True)
class Refusals:
    """The refusals of a token in a row. `patience_s` None goes on for ever. Times are monotonic seconds."""

    patience_s: float | None = None
    _was_welcome: bool = False
    _since: float | None = None

    def welcomed(self) -> None:
        """The watchdog took the token."""
        self._was_welcome, self._since = True, None

    def is_final(self, refused: str, current: str, now: float) -> bool:
        """Whether trying again is of no use: `refused` was turned away now, `current` is what would be shown next.

        Who was never welcome says so at once, as that is somebody's mistake at the start.
        """
        if self.patience_s is None or refused != current:
            return False
        self._since = now if self._since is None else self._since
        return not self._was_welcome or now - self._since >= self.patience_s
