"""Journal lines as text."""

from datetime import UTC, datetime

import msgspec

from holdfast.api.event import Journaled


def gone_text(first: int, compacted_at: float | None) -> str:
    """Where a journal begins whose oldest lines were compacted."""
    at = f" at {_time(compacted_at)}" if compacted_at is not None else ""
    return f"lines before {first} were compacted{at}; incidents are kept"


def journal_line(line: Journaled) -> str:
    """Place, time, event."""
    fields = msgspec.to_builtins(line.event)
    kind = fields.pop("type")
    told = " ".join(f"{name}={_short(value)}" for name, value in fields.items() if value not in (None, [], ""))
    return f"{line.offset:6d}  {_time(line.at)}  {kind}  {told}".rstrip()


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _short(value: object) -> str:
    return value if isinstance(value, str) and " " not in value else msgspec.json.encode(value).decode()
