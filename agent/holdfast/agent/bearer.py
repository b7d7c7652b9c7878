"""The bearer token the agent shows to the watchdog and expects from whoever reads its metrics."""

from holdfast.api.errors import Unavailable

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
