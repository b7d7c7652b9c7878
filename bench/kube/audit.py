"""The API server's own log of who wrote what and when: counts and times that no client has to be trusted for."""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec

OPERATOR: Final = "holdfast-operator-of-the-bench"
BARE: Final = "bare-client-of-the-bench"
POLICY: Final[dict[str, Any]] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        # A leader renews its lease whether or not there is anything to do.
        {"level": "None", "resources": [{"group": "coordination.k8s.io", "resources": ["leases"]}]},
        {"level": "Metadata", "users": [OPERATOR, BARE], "verbs": ["create", "update", "patch", "delete"]},
        {"level": "None"},
    ],
}


class Write(msgspec.Struct, frozen=True):
    """One request that changed something. Times are the API server's, in seconds since the epoch."""

    user: str
    verb: str
    resource: str
    began_at: float
    answered_at: float

    @property
    def kind(self) -> str:
        return f"{self.verb} {self.resource}"


class AuditLog:
    """Read on with `read`; `writes` are all that were read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.writes: list[Write] = []

    def read(self) -> int:
        """Take in what is new; how many writes there are now. A line that is not whole yet waits."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._offset)
                whole, newline, _ = file.read().rpartition(b"\n")
            self._offset += len(whole) + len(newline)
            self.writes += read_writes(whole.splitlines())
        return len(self.writes)

    def since(self, number: int, user: str = OPERATOR) -> list[Write]:
        """The writes of `user` from that number on."""
        return [each for each in self.writes[number:] if each.user == user]


def read_writes(lines: Iterable[bytes]) -> list[Write]:
    """Those that were taken: no dry run, no refusal."""
    return [write for line in lines if (write := _read(msgspec.json.decode(line))) is not None]


def counted(writes: Iterable[Write]) -> str:
    """What was written, in words: most frequent first."""
    return ", ".join(f"{number} {kind}" for kind, number in Counter(each.kind for each in writes).most_common())


def of_kind(writes: Iterable[Write], kind: str) -> list[Write]:
    return [each for each in writes if each.kind == kind]


def span_s(writes: Sequence[Write]) -> float:
    """From the first one's arrival to the last one's answer."""
    return max(each.answered_at for each in writes) - min(each.began_at for each in writes)


def _read(line: dict[str, Any]) -> Write | None:
    about, code = line["objectRef"], line["responseStatus"]["code"]
    if line["stage"] != "ResponseComplete" or code >= 300 or "dryRun=" in line["requestURI"]:
        return None
    parts = (about["resource"], about.get("subresource", ""))
    return Write(
        user=line["user"]["username"],
        verb=line["verb"],
        resource="/".join(part for part in parts if part),
        began_at=_seconds(line["requestReceivedTimestamp"]),
        answered_at=_seconds(line["stageTimestamp"]),
    )


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
