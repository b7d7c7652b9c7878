"""The API server's log, as far as the operator's bench reads it."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from kube.audit import BARE, OPERATOR, AuditLog, counted, of_kind, read_writes, span_s


def line(
    verb: str = "create", resource: str = "pods", *, at: float = 0.0, took_s: float = 0.5, **more: Any
) -> bytes:
    """One entry; `at` is in the first minute of 2026."""
    entry = {
        "stage": "ResponseComplete",
        "verb": verb,
        "user": {"username": OPERATOR},
        "requestURI": "/api/v1/namespaces/training/pods",
        "objectRef": {"resource": resource},
        "responseStatus": {"code": 201},
        "requestReceivedTimestamp": f"2026-01-01T00:00:{at:09.6f}Z",
        "stageTimestamp": f"2026-01-01T00:00:{at + took_s:09.6f}Z",
    }
    return msgspec.json.encode(entry | more)


def test_writes_are_counted_by_what_they_were() -> None:
    status = line("patch", objectRef={"resource": "trainingjobs", "subresource": "status"})
    writes = read_writes([line(), status, line()])
    assert counted(writes) == "2 create pods, 1 patch trainingjobs/status"
    assert len(of_kind(writes, "create pods")) == 2


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param({"requestURI": "/api/v1/namespaces/training/pods?dryRun=All"}, id="a dry run"),
        pytest.param({"responseStatus": {"code": 409}}, id="a refusal"),
        pytest.param({"stage": "Panic"}, id="no answer"),
    ],
)
def test_what_changed_nothing_is_no_write(entry: dict[str, Any]) -> None:
    assert read_writes([line(**entry)]) == []


def test_a_span_is_from_the_first_arrival_to_the_last_answer() -> None:
    writes = read_writes([line(at=2.0, took_s=9.0), line(at=1.25), line(at=3.0)])
    assert span_s(writes) == pytest.approx(9.75)


def test_a_growing_log_is_read_on_and_half_a_line_waits(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    log = AuditLog(path)
    assert log.read() == 0
    whole, half = line(), line("delete")
    path.write_bytes(whole + b"\n" + half[:40])
    assert log.read() == 1
    with path.open("ab") as file:
        file.write(half[40:] + b"\n")
    assert log.read() == 2
    assert [each.kind for each in log.since(1)] == ["delete pods"]


def test_writes_since_a_moment_are_those_of_one_user(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.write_bytes(b"\n".join((line(), line(user={"username": BARE}), line("delete"), b"")))
    log = AuditLog(path)
    log.read()
    assert [each.kind for each in log.since(0)] == ["create pods", "delete pods"]
    assert [each.kind for each in log.since(1)] == ["delete pods"]
    assert [each.user for each in log.since(0, BARE)] == [BARE]
