"""What a cloud's metadata service says of the future of its machine, as notices. Pure.

How long is left is counted from the service's own Date header: no clock of this machine is compared with it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any, Final

import msgspec

from holdfast.api.decoding import decode_json
from holdfast.api.errors import Malformed

# The shortest notice each promises, for when it names no time.
# Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
AWS_SPOT_S: Final = 120.0
# Source: https://cloud.google.com/compute/docs/instances/preemptible
GCP_PREEMPTION_S: Final = 30.0
# Source: https://cloud.google.com/compute/docs/metadata/getting-live-migration-notice
GCP_MAINTENANCE_S: Final = 60.0
# Source: https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events
AZURE_SHORTEST_S: Final = 30.0
AZURE_DEPARTURES: Final = frozenset(("Preempt", "Terminate", "Reboot", "Redeploy"))  # a Freeze lasts for seconds


class Meaning(StrEnum):
    """What follows from a notice."""

    DEPARTURE = "departure"
    ADVICE = "advice"  # the cloud would rather have it moved; it is only said


@dataclass(frozen=True, slots=True)
class Notice:
    """One notice. `key` is the same for as long as it is the same notice; `within_s` from the answer on."""

    key: str
    meaning: Meaning
    within_s: float
    text: str


class NotNotice(ValueError):
    """The answer is not what the service documents."""


class _SpotAction(msgspec.Struct):
    action: str
    time: str = ""


class _Rebalance(msgspec.Struct, rename="camel"):
    notice_time: str = ""


class _AzureEvent(msgspec.Struct, rename="pascal"):
    event_id: str
    event_type: str
    event_status: str = ""
    resources: tuple[str, ...] = ()
    not_before: str = ""
    description: str = ""


class _AzureDocument(msgspec.Struct, rename="pascal"):
    events: tuple[_AzureEvent, ...] = ()


def aws_spot_notice(body: str, answered: datetime | None) -> Notice:
    """`spot/instance-action`: terminate, stop and hibernate all take the machine away. Raises NotNotice."""
    said = _decoded(body, _SpotAction)
    within_s = _seconds_until(said.time, answered, AWS_SPOT_S)
    return Notice(f"{said.action} {said.time}", Meaning.DEPARTURE, within_s, f"{said.action} at {said.time}")


def aws_rebalance_notice(body: str) -> Notice:
    """`events/recommendations/rebalance`: a raised risk, not a decision. Raises NotNotice."""
    said = _decoded(body, _Rebalance)
    return Notice(
        f"rebalance {said.notice_time}", Meaning.ADVICE, 0.0, f"rebalancing recommended {said.notice_time}"
    )


def azure_notices(body: str, machine: str, answered: datetime | None) -> Iterator[Notice]:
    """Scheduled events that take `machine` away; the document names those of its whole group. Raises NotNotice."""
    for event in _decoded(body, _AzureDocument).events:
        named = machine.lower() in (resource.lower() for resource in event.resources)
        if not named or event.event_type not in AZURE_DEPARTURES:
            continue
        shortest = 0.0 if event.event_status == "Started" else AZURE_SHORTEST_S
        yield Notice(
            event.event_id,
            Meaning.DEPARTURE,
            _seconds_until(event.not_before, answered, shortest),
            f"{event.event_type} {event.event_id}" + (f": {event.description}" if event.description else ""),
        )


def when(text: str) -> datetime | None:
    """A time in ISO 8601 or as in HTTP headers, None for anything else."""
    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            parsed = parse(text)
        except (ValueError, TypeError, OverflowError):
            continue
        return parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)
    return None


def _seconds_until(text: str, answered: datetime | None, otherwise_s: float) -> float:
    at = when(text)
    return otherwise_s if at is None or answered is None else max(0.0, (at - answered).total_seconds())


def _decoded(body: str, kind: type[Any]) -> Any:
    try:
        return decode_json(body, kind)
    except Malformed as error:
        raise NotNotice(f"not what it documents: {error}") from error
