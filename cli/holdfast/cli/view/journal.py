"""Journal lines as text."""

from datetime import UTC, datetime

import msgspec

from holdfast.api.event import Journaled


def journal_line(line: Journaled) -> str:
    """Place, time, event."""
    at = datetime.fromtimestamp(line.at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    fields = msgspec.to_builtins(line.event)
    kind = fields.pop("type")
    told = " ".join(f"{name}={_short(value)}" for name, value in fields.items() if value not in (None, [], ""))
    return f"{line.offset:6d}  {at}  {kind}  {told}".rstrip()


def _short(value: object) -> str:
    return value if isinstance(value, str) and " " not in value else msgspec.json.encode(value).decode()
