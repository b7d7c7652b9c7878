"""Kubernetes' timestamps (RFC 3339, UTC) and wall seconds since the epoch."""

from datetime import UTC, datetime


def seconds_of(text: str | None) -> float | None:
    """Wall seconds, None when there is no timestamp or it is not one."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def text_of(seconds: float) -> str:
    """The timestamp of `seconds`, in whole seconds: a fraction is cut off."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def precise_text_of(seconds: float) -> str:
    """With microseconds, as Kubernetes wants the times of a Lease."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
