"""Quantities as people write them in a job file: durations, numbers of steps and percentages.

A duration is a number and a unit ("500ms", "1s", "10m", "1h30m", "2d"); a bare number is refused, because
nobody can tell seconds from minutes by looking at it. Steps are "50steps", a percentage is "15%".
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

_UNITS_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_PART = r"[0-9]{1,12}(\.[0-9]{1,6})?(ms|d|h|m|s)"
_SHARE = r"[0-9]{1,3}([.][0-9]{1,6})?"
_DURATION = re.compile(rf"({_PART})+")
_PARTS = re.compile(r"(\d+(?:\.\d+)?)(ms|d|h|m|s)")
_STEPS = re.compile(r"(\d{1,12})steps?")
_PERCENT = re.compile(r"(\d{1,3}(?:\.\d{1,6})?)%")

LENGTH_MAX = 64  # of a quantity as it is written
ZERO_FIX = "write a duration longer than zero, such as 10s"
DURATION_FIX = "write a number with a unit, such as 500ms, 10s, 5m or 24h"
STEPS_FIX = "write a whole number above zero and the word steps, such as 50steps"
PERCENT_FIX = "write a percentage from 0% to 100%, such as 15%"
INTERVAL_FIX = "write auto, a duration such as 10m, or a number of steps such as 500steps"
EXCESS_FIX = "write auto or a percentage from 0% to 100%, such as 15%"
SUSTAINED_FIX = "write auto, or a whole number above zero and the word steps, such as 50steps"
TIMEOUT_FIX = "write auto or a duration such as 10m"


@dataclass(frozen=True, slots=True)
class Steps:
    """A number of optimizer steps, at least one."""

    count: int

    def __str__(self) -> str:
        return f"{self.count}steps"


@dataclass(frozen=True, slots=True)
class Percent:
    """A share, kept as a ratio between 0 and 1."""

    ratio: float

    def __str__(self) -> str:
        return f"{self.ratio * 100:.10g}%"


def parse_duration(text: str) -> timedelta | None:
    """The duration written as `text`, or None when it is none. Longest form: a thousand years."""
    if len(text) > LENGTH_MAX or not _DURATION.fullmatch(text):
        return None
    total_ms = sum(float(number) * _UNITS_MS[unit] for number, unit in _PARTS.findall(text))
    return timedelta(milliseconds=total_ms) if total_ms <= 365_000 * _UNITS_MS["d"] else None


def format_duration(duration: timedelta) -> str:
    """The shortest text that `parse_duration` reads back, to the millisecond."""
    rest_ms = round(duration.total_seconds() * 1000)
    parts = []
    for unit, size_ms in _UNITS_MS.items():
        count, rest_ms = divmod(rest_ms, size_ms)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def parse_steps(text: str) -> Steps | None:
    """The number of steps written as `text`, or None when it is none."""
    found = _STEPS.fullmatch(text)
    return Steps(int(found[1])) if found and int(found[1]) > 0 else None


def parse_percent(text: str) -> Percent | None:
    """The percentage written as `text`, or None when it is none."""
    found = _PERCENT.fullmatch(text)
    return Percent(float(found[1]) / 100) if found and float(found[1]) <= 100 else None


def _refusal(fix: str) -> PydanticCustomError:
    return PydanticCustomError("quantity", "{fix}", {"fix": fix})


Quantity = timedelta | Steps | Percent
_PARSERS: Mapping[type[Quantity], Callable[[str], Quantity | None]] = {
    timedelta: parse_duration,
    Steps: parse_steps,
    Percent: parse_percent,
}


def _one_of(*kinds: type[Quantity], fix: str, auto: bool = False) -> PlainValidator:
    """Takes what is, or is written as, one of `kinds`; None and the word auto give None with `auto`."""

    def read(value: object) -> Quantity | None:
        if auto and (value is None or value == "auto"):
            return None
        for kind in kinds:
            parsed = (
                value if isinstance(value, kind) else _PARSERS[kind](value) if isinstance(value, str) else None
            )
            if isinstance(parsed, timedelta) and parsed <= timedelta(0):
                raise _refusal(ZERO_FIX)
            if parsed is not None:
                return parsed
        raise _refusal(fix)

    return PlainValidator(read)


def _format(value: Quantity | None) -> str:
    if value is None:
        return "auto"
    return format_duration(value) if isinstance(value, timedelta) else str(value)


def _schema(pattern: str, description: str, *rules: tuple[str, str]) -> WithJsonSchema:
    """`rules` are what the pattern cannot say, in CEL as the API server takes it, each with its fix."""
    return WithJsonSchema(
        {
            "type": "string",
            "pattern": f"^{pattern}$",
            "maxLength": LENGTH_MAX,
            "description": description,
            "x-kubernetes-validations": [{"rule": rule, "message": fix} for rule, fix in rules],
        }
    )


_ABOVE_ZERO = ("self == 'auto' || self.endsWith('s') && self.contains('step') || self.matches('[1-9]')", ZERO_FIX)


def _counts(fix: str) -> tuple[str, str]:
    return "self == 'auto' || !self.contains('step') || self.matches('[1-9]')", fix


def _shares(fix: str) -> tuple[str, str]:
    return "self == 'auto' || double(self.substring(0, size(self) - 1)) <= 100.0", fix


_WRITTEN = PlainSerializer(_format, return_type=str)

Duration = Annotated[
    timedelta,
    _one_of(timedelta, fix=DURATION_FIX),
    _WRITTEN,
    _schema(f"({_PART})+", "a duration such as 500ms or 10m", _ABOVE_ZERO),
]
StepCount = Annotated[
    Steps,
    _one_of(Steps, fix=STEPS_FIX),
    _WRITTEN,
    _schema(r"[0-9]{1,12}steps?", "a number of steps such as 50steps", _counts(STEPS_FIX)),
]
Share = Annotated[
    Percent,
    _one_of(Percent, fix=PERCENT_FIX),
    _WRITTEN,
    _schema(rf"{_SHARE}%", "a percentage such as 15%", _shares(PERCENT_FIX)),
]
Excess = Annotated[
    Percent | None,
    _one_of(Percent, fix=EXCESS_FIX, auto=True),
    _WRITTEN,
    _schema(rf"(auto|{_SHARE}%)", "auto or a percentage such as 15%", _shares(EXCESS_FIX)),
]
Sustained = Annotated[
    Steps | None,
    _one_of(Steps, fix=SUSTAINED_FIX, auto=True),
    _WRITTEN,
    _schema(r"(auto|[0-9]{1,12}steps?)", "auto or a number of steps such as 50steps", _counts(SUSTAINED_FIX)),
]
Interval = Annotated[
    timedelta | Steps | None,
    _one_of(Steps, timedelta, fix=INTERVAL_FIX, auto=True),
    _WRITTEN,
    _schema(
        rf"(auto|[0-9]{{1,12}}steps?|({_PART})+)",
        "auto, a duration or a number of steps",
        _ABOVE_ZERO,
        _counts(INTERVAL_FIX),
    ),
]
Timeout = Annotated[
    timedelta | None,
    _one_of(timedelta, fix=TIMEOUT_FIX, auto=True),
    _WRITTEN,
    _schema(rf"(auto|({_PART})+)", "auto or a duration", _ABOVE_ZERO),
]
