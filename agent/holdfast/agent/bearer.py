"""The bearer token the agent shows to the watchdog and expects from readers of its metrics, and whom it trusts."""

import ssl

from holdfast.api.errors import InvalidInput, Unavailable
from holdfast.api.trust import trusting

_AUTHORITY_CHARACTERS_MAX = 1 << 20
_TOKEN_BYTES_MAX = 16384  # service-account tokens are one to two kilobytes


def read_token(path: str) -> str:
    """The token in `path`, read anew for each use because tokens rotate. Raises Unavailable."""
    try:
        with open(path, "rb") as file:
            token = file.read(_TOKEN_BYTES_MAX).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Unavailable(f"The token file {path} cannot be read: {error}") from error
    if not token:
        raise Unavailable(f"The token file {path} is empty.")
    return token


def read_authority(path: str) -> ssl.SSLContext:
    """Who may have signed the watchdog's certificate, read anew for each connection. Raises Unavailable."""
    try:
        with open(path, encoding="ascii") as file:
            return trusting(file.read(_AUTHORITY_CHARACTERS_MAX), given_by=path)
    except (OSError, UnicodeDecodeError, InvalidInput) as error:
        raise Unavailable(f"The certificate authority {path} cannot be used: {error}") from error
