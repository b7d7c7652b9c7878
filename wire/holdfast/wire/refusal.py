"""What a watchdog's refusal means."""

from typing import Final

import msgspec

from holdfast.api.decoding import decode_json
from holdfast.api.errors import HoldfastError, InvalidInput, Malformed, Problem, Unavailable

TEXT_LENGTH_MAX: Final = 500


class Explanation(msgspec.Struct):
    """How the watchdog words a refusal."""

    error: str = ""


def explanation(content: bytes) -> str:
    """The sentence in a refusal's body, empty when there is none."""
    try:
        return decode_json(content, Explanation).error
    except Malformed:
        return ""


def refusal(status: int, content: bytes, subject: str, token_of: str) -> HoldfastError:
    """The error a watchdog's refusal is. `subject` is what was asked about, `token_of` whose token was shown.

    Not being let in is a matter of the installation, which changes (Unavailable); a request that was refused for
    what it says never gets better (InvalidInput).
    """
    said = explanation(content)
    if status in (401, 403):
        return Unavailable(f"the watchdog refused the token of {token_of}: {said or status}")
    if status == 404:
        return InvalidInput(Problem("job", subject, said or "the watchdog does not know it"))
    said = said or content[:TEXT_LENGTH_MAX].decode("utf-8", "replace").strip()
    if status < 500 and status not in (408, 429):
        return InvalidInput(Problem("request", subject, said or f"the watchdog answered {status}"))
    return Unavailable(f"the watchdog answered {status}: {said or 'no reason given'}")
