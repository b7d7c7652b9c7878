"""What a watchdog's refusal is taken for."""

import pytest

from holdfast.api.errors import InvalidInput, Unavailable
from holdfast.wire.answer import explanation, refusal

WORDS = b'{"error": "there is no such rank"}'


@pytest.mark.parametrize("status", [401, 403, 408, 429, 500, 503])
def test_what_may_get_better_is_tried_again(status: int) -> None:
    error = refusal(status, WORDS, "research/gpt", "a test")
    assert isinstance(error, Unavailable)
    assert "there is no such rank" in str(error)


@pytest.mark.parametrize("status", [400, 404, 409, 422])
def test_what_the_request_says_never_gets_better(status: int) -> None:
    error = refusal(status, WORDS, "research/gpt", "a test")
    assert isinstance(error, InvalidInput)
    assert "'research/gpt' is not accepted; there is no such rank" in str(error)


def test_words_that_are_not_the_watchdogs_are_shown_as_they_are_up_to_a_bound() -> None:
    assert explanation(b"<html>") == ""
    assert str(refusal(502, b"<html>" + b"x" * 9999, "", "")).endswith("<html>" + "x" * 494)
    assert str(refusal(500, b"", "", "")) == "the watchdog answered 500: no reason given"
    assert "the watchdog answered 400" in str(refusal(400, b"", "job", ""))
