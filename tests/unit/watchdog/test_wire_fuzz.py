"""Whatever bytes arrive, decoding gives a message or one of the errors the server answers."""

import math
from typing import get_type_hints

import msgspec
import pytest
from aiohttp import WSMessage, WSMsgType
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.api.condition import Condition, ConditionKind, ConditionState
from holdfast.api.decoding import decode
from holdfast.api.errors import Malformed
from holdfast.api.membership import CollectiveFailed, Departing, FromLauncher, WorkerExited
from holdfast.api.rankrecord import Phase
from holdfast.api.telemetry import (
    BatchTaken,
    DeviceAnswered,
    GpuDisappeared,
    GpuHealth,
    GpuSample,
    NodeEvent,
    NodeReport,
    NonFinite,
    ParametersChanged,
    ParametersFingerprinted,
    PreemptionNoticed,
    ProcessKilledForMemory,
    ProcessState,
    RankSample,
    XidRaised,
)
from holdfast.api.workeroutput import WorkerOutput
from holdfast.watchdog.server import peers
from holdfast.watchdog.server.connection import BadMessage, decoded

DECODERS = {
    "launcher": peers.LAUNCHER_MESSAGES,
    "agent": peers.AGENT_MESSAGES,
    "operator": peers.OPERATOR_MESSAGES,
}
OUTPUT = msgspec.msgpack.encode(WorkerOutput(0, 7, 1, 1.0, 2.0, "signal 9", 0, b"\xff\xfe"))
VALID = msgspec.msgpack.encode(WorkerExited(round=3, rank=1, age_s=0.5, signal=9, error="Killed ✓"))


def survives(frame: bytes, peer: str) -> None:
    try:
        assert isinstance(decoded(WSMessage(WSMsgType.BINARY, frame, None), DECODERS[peer]), msgspec.Struct)
    except BadMessage as error:
        assert str(error)  # noqa: PT017 - any text will do


@pytest.mark.parametrize("peer", DECODERS)
@settings(deadline=None)
@given(frame=st.binary(max_size=200))
@example(frame=b"\x91" * 50_000)
@example(frame=OUTPUT)
@example(frame=OUTPUT[:-1])
@example(frame=b"\xdf\xff\xff\xff\xff")
@example(frame=b"\x81\xa4type\xa4Join" + b"\x81" * 50_000)
@example(frame=b"\x81\xa4type\xa4\xff\xff\xff\xff")
def test_random_bytes_are_a_message_or_an_answered_error(peer: str, frame: bytes) -> None:
    survives(frame, peer)


@pytest.mark.parametrize("peer", DECODERS)
@given(place=st.integers(0, len(VALID) - 1), byte=st.integers(0, 255), cut=st.integers(0, len(VALID)))
def test_a_damaged_message_is_another_message_or_an_answered_error(
    peer: str, place: int, byte: int, cut: int
) -> None:
    frame = bytearray(VALID)
    frame[place] = byte
    survives(bytes(frame[:cut]), peer)
    survives(bytes(frame), peer)


# Nothing is judged by these: what they hold is only shown, or is news in itself when it is no number.
SHOWN = {"loss", "grad_norm", "local_grad_norm", "memory_temperature_c", "power_w", "utilization_ratio"}
CONDITION = Condition(ConditionKind.PCIE_DEGRADED, ConditionState.RAISED, 1.0, "8 lanes of 16")
REPORT = NodeReport(
    "n0",
    "b1",
    1,
    ranks=(RankSample(1, 0, ProcessState.RUNNING, Phase.FORWARD, 0.1, 0.1, pulse_age_s=0.1, step_time_s=0.5),),
    gpus=(GpuSample("GPU-0", 0, GpuHealth.HEALTHY, temperature_c=50.0, margin_c=40.0, throttled_s=0.0),),
    events=(
        XidRaised("GPU-0", 63, 0.1),
        GpuDisappeared("GPU-0", 0.1),
        ParametersFingerprinted(1, 0, 0, 10, 7, 0.1),
        DeviceAnswered(1, 0, 0, 10, 7, 9, 0.1),
        ParametersChanged(1, 0, 10, 0.1),
        BatchTaken(1, 0, 10, 7, 0.1),
        PreemptionNoticed("cloud", 120.0, 0.1),
        ProcessKilledForMemory(7, "python", 0.1),
    ),
    conditions=(CONDITION,),
)
SAID = (WorkerExited(1, 0, 0.1, signal=9), CollectiveFailed(1, 0, 0.1), Departing("told to end", 30.0))


def figures(part: msgspec.Struct) -> list[str]:
    """The fields of a message that hold a number with a fraction."""
    return [name for name, kind in get_type_hints(type(part)).items() if kind in (float, float | None)]


FIGURES = [
    pytest.param(of, place, name, id=f"{type(part).__name__}.{name}")
    for of in ("ranks", "gpus", "events", "conditions")
    for place, part in enumerate(getattr(REPORT, of))
    for name in figures(part)
]


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("of", "place", "name"), FIGURES)
def test_a_report_is_refused_for_a_figure_that_is_judged_and_no_number(
    of: str, place: int, name: str, odd: float
) -> None:
    parts = list(getattr(REPORT, of))
    parts[place] = msgspec.structs.replace(parts[place], **{name: odd})
    report = msgspec.structs.replace(REPORT, **{of: tuple(parts)})
    if name in SHOWN:
        assert decode(peers.AGENT_MESSAGES, msgspec.msgpack.encode(report)) is not None
        return
    with pytest.raises(Malformed, match=rf"{name}: -?(nan|inf) is not accepted"):
        decode(peers.AGENT_MESSAGES, msgspec.msgpack.encode(report))


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_a_report_is_refused_for_an_age_of_a_fault_that_is_no_number(odd: float) -> None:
    rank = msgspec.structs.replace(REPORT.ranks[0], nonfinite=NonFinite(3, odd, 3, 1, "nan"))
    with pytest.raises(Malformed, match=r"age_s: -?(nan|inf) is not accepted"):
        decode(peers.AGENT_MESSAGES, msgspec.msgpack.encode(msgspec.structs.replace(REPORT, ranks=(rank,))))


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("message", "name"), [(each, name) for each in SAID for name in figures(each)])
def test_a_launchers_message_is_refused_for_a_time_that_is_no_number(
    message: FromLauncher, name: str, odd: float
) -> None:
    with pytest.raises(Malformed, match=rf"{name}: -?(nan|inf) is not accepted"):
        decode(peers.LAUNCHER_MESSAGES, msgspec.msgpack.encode(msgspec.structs.replace(message, **{name: odd})))


def test_what_is_whole_is_taken_and_every_kind_of_message_is_looked_at() -> None:
    assert {param.values[2] for param in FIGURES} >= SHOWN
    assert {str(param.id).partition(".")[0] for param in FIGURES} == {
        *(type(part).__name__ for part in (*REPORT.ranks, *REPORT.gpus, *REPORT.conditions)),
        *(kind.__name__ for kind in NodeEvent.__args__),
    }
    assert decode(peers.AGENT_MESSAGES, msgspec.msgpack.encode(REPORT)) == REPORT
    for message in SAID:
        assert decode(peers.LAUNCHER_MESSAGES, msgspec.msgpack.encode(message)) == message
