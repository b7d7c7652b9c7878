from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.quantity import Percent, Steps, format_duration, parse_duration, parse_percent, parse_steps


@given(st.integers(min_value=0, max_value=10**12))
def test_a_duration_written_out_reads_back_to_the_millisecond(milliseconds: int) -> None:
    duration = timedelta(milliseconds=milliseconds)
    assert parse_duration(format_duration(duration)) == duration


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("1s", 1), ("1.5s", 1.5), ("10m", 600), ("1h30m", 5400), ("2d", 172800)]
)
def test_a_duration_is_numbers_with_units(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text", ["", "10", "s", "10 s", "-1s", "1w", "1s ", "１s", "1e3s", "9999999999999s", "999999d"]
)
def test_other_texts_are_no_duration(text: str) -> None:
    assert parse_duration(text) is None


@given(st.text(max_size=20))
def test_no_text_makes_the_parsers_fail(text: str) -> None:
    for parser in (parse_duration, parse_steps, parse_percent):
        parser(text)


def test_steps_and_percentages_write_themselves_as_they_are_read() -> None:
    assert parse_steps(str(Steps(50))) == Steps(50)
    assert parse_percent(str(Percent(0.15))) == Percent(0.15)
    assert parse_steps("0steps") is None
    assert parse_percent("101%") is None
