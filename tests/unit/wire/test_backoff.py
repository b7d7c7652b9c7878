"""How long is waited before trying again."""

import pytest

from holdfast.wire.backoff import Backoff


def test_waits_double_to_a_bound_and_begin_anew_once_it_went_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.uniform", lambda least, most: most)
    backoff = Backoff(0.1, 1.5)
    assert [backoff.next_s() for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.5, 1.5]
    assert backoff.failures == 6
    backoff.reset()
    assert backoff.next_s() == 0.1


def test_peers_are_kept_apart_and_no_number_of_failures_overflows() -> None:
    backoff = Backoff(1.0, 1.0)
    waits = [backoff.next_s() for _ in range(2000)]
    assert 0.5 <= min(waits) < 0.6
    assert 0.9 < max(waits) <= 1.0
