"""What a later version says besides: it is left out, and what is understood counts."""

from enum import Enum
from typing import Any

import msgspec
import pytest

from holdfast.api.condition import Condition, ConditionKind, ConditionState
from holdfast.api.control import Entered, FromWorker, Reenters
from holdfast.api.decoding import UnknownMessage, decode, decode_any, decode_msgpack, tags_of
from holdfast.api.errors import Malformed
from holdfast.api.membership import Restored
from holdfast.api.rankrecord import Phase
from holdfast.api.round import Follows, Reentry, Tier
from holdfast.api.telemetry import (
    GpuHealth,
    GpuSample,
    NodeReport,
    ProcessState,
    RankSample,
    XidRaised,
)
from holdfast.watchdog.server.peers import AGENT_MESSAGES

RANKS = tuple(RankSample(3, each, ProcessState.RUNNING, Phase.FORWARD, 0.1, 0.1) for each in range(2))
REPORT = NodeReport(
    "n0",
    "a",
    7,
    RANKS,
    (GpuSample("GPU-a", 0, GpuHealth.HEALTHY),),
    (XidRaised("GPU-a", 79, 0.1),),
    conditions=(Condition(ConditionKind.NVLINK_DOWN, ConditionState.RAISED, 1.0, "down", "GPU-a"),),
)


def plain() -> dict[str, Any]:
    said: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(REPORT))
    return said


def heard(said: dict[str, Any]) -> NodeReport:
    report = decode(AGENT_MESSAGES, msgspec.msgpack.encode(said))
    assert isinstance(report, NodeReport)
    return report


@pytest.mark.parametrize(
    ("field", "value", "is_read_as"),
    [
        ("phase", 8, Phase.IDLE),
        ("phase", 200, Phase.IDLE),
        ("process", "Frozen", ProcessState.UNKNOWN),
    ],
)
def test_of_a_rank_that_tells_of_something_new_the_rest_counts_and_of_its_node_all(
    field: str, value: object, is_read_as: Enum
) -> None:
    said = plain()
    said["ranks"][0][field] = value
    report = heard(said)
    assert getattr(report.ranks[0], field) is is_read_as
    assert report == msgspec.structs.replace(
        REPORT, ranks=(msgspec.structs.replace(RANKS[0], **{field: is_read_as}), RANKS[1])
    )


def test_a_gpu_whose_health_is_a_word_that_is_new_is_unknown() -> None:
    said = plain()
    said["gpus"][0]["health"] = "Resting"
    assert heard(said).gpus[0].health is GpuHealth.UNKNOWN


@pytest.mark.parametrize(
    ("field", "new"),
    [
        ("events", {"type": "CoolantLost", "age_s": 0.1}),
        ("conditions", {"kind": "CoolantLow", "state": "Raised", "age_s": 1.0, "says": "low"}),
        ("all_clear", {"kind": "CoolantLow", "but": []}),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_an_event_or_a_condition_that_is_new_is_left_out_and_told(
    field: str, new: dict[str, object], first: bool
) -> None:
    said = plain()
    said[field] = [new, *said.get(field, [])] if first else [*said.get(field, []), new]
    report = heard(said)
    (told,) = report.unreadable
    assert next(iter(new.values())) in told.reason
    assert "1 that" in told.reason
    assert msgspec.structs.replace(report, unreadable=()) == REPORT


def test_a_condition_in_a_state_that_is_new_is_left_out_and_told() -> None:
    said = plain()
    said["conditions"].append(
        {"kind": ConditionKind.NVLINK_DOWN, "state": "Suspected", "age_s": 1.0, "says": "perhaps"}
    )
    report = heard(said)
    (told,) = report.unreadable
    assert "Suspected" in told.reason
    assert msgspec.structs.replace(report, unreadable=()) == REPORT


@pytest.mark.parametrize(
    "bad",
    [
        {"type": "XidRaised", "gpu": "GPU-a", "xid": -1, "age_s": 0.1},
        {"gpu": "GPU-a"},
        {"type": 7},
        7,
    ],
)
def test_what_is_wrong_and_not_new_is_refused_as_ever(bad: object) -> None:
    for others in ([], [{"type": "CoolantLost"}]):
        said = plain()
        said["events"] = [*others, bad]
        with pytest.raises(Malformed):
            heard(said)


@pytest.mark.parametrize(
    ("message", "field", "value", "is_read_as"),
    [
        (Reenters(Reentry.ANY_WORLD, "x"), "reentry", "OtherWorld", Reentry.NEVER),
        (Restored(1, 0, 5), "tier", "Network", Tier.CHECKPOINT),
        (
            Restored(1, 0, 5, follows=(Follows.BATCHES,)),
            "follows",
            ["Batches", "Order"],
            (Follows.BATCHES, Follows.RESTORE),
        ),
    ],
)
def test_a_worker_that_tells_of_something_new_is_understood(
    message: object, field: str, value: object, is_read_as: object
) -> None:
    said = msgspec.msgpack.decode(msgspec.msgpack.encode(message))
    said[field] = value
    kind: Any = FromWorker
    assert getattr(decode_msgpack(msgspec.msgpack.encode(said), kind), field) == is_read_as


def test_a_message_of_a_kind_that_is_new_is_told_from_one_that_is_wrong() -> None:
    decoder, kinds = msgspec.msgpack.Decoder(FromWorker), tags_of(FromWorker)
    assert decode_any(decoder, msgspec.msgpack.encode(Entered(3)), kinds) == Entered(3)
    with pytest.raises(UnknownMessage, match="Pausing"):
        decode_any(decoder, msgspec.msgpack.encode({"type": "Pausing", "round": 3}), kinds)
    for wrong in ({"type": "Entered", "round": -1}, {"round": 3}, {"type": 3}, 3):
        with pytest.raises(Malformed) as raised:
            decode_any(decoder, msgspec.msgpack.encode(wrong), kinds)
        assert not isinstance(raised.value, UnknownMessage)
