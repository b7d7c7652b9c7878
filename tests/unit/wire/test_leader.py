"""How a client that meets standbys behaves."""

import pytest

from holdfast.wire.answer import QUICK_S, QUICK_TRIES, SLOW_S, TRIES_MAX, LeaderSearch, ask_again_after_s

STANDBY = {"X-Holdfast-Standing": "standby"}


def test_the_first_tries_come_at_once_and_later_ones_do_not_crowd() -> None:
    slowest = [ask_again_after_s(met, jitter=1.0) for met in range(1, TRIES_MAX + 1)]
    assert slowest[:QUICK_TRIES] == [QUICK_S] * QUICK_TRIES
    assert slowest == sorted(slowest)
    assert slowest[-1] == SLOW_S
    assert ask_again_after_s(10**6, jitter=1.0) == SLOW_S


def test_clients_are_kept_apart() -> None:
    assert ask_again_after_s(1, jitter=0.0) == QUICK_S / 2


def test_asking_lasts_longer_than_a_leader_that_died_is_missed_for() -> None:
    fastest = sum(ask_again_after_s(met, jitter=0.0) for met in range(1, TRIES_MAX))
    typical = sum(ask_again_after_s(met, jitter=0.5) for met in range(1, TRIES_MAX))
    assert fastest > 2.0
    assert typical > 3.0


@pytest.mark.parametrize(
    ("status", "headers"),
    [(503, {}), (503, None), (401, STANDBY), (503, {"X-Holdfast-Standing": "leading"})],
    ids=["no header", "no headers", "refused", "leading"],
)
def test_another_refusal_is_no_standbys(status: int, headers: dict[str, str] | None) -> None:
    search = LeaderSearch()
    assert search.after_s(503, STANDBY, 1.0) is not None
    assert search.after_s(status, headers, 1.0) is None


def test_a_search_in_vain_is_told_of_until_a_leader_is_found() -> None:
    search = LeaderSearch()
    for _ in range(TRIES_MAX):
        assert not search.in_vain
        search.after_s(503, STANDBY, 0.0)
    assert search.in_vain
    search.found()
    assert not search.in_vain
    assert search.after_s(503, STANDBY, 1.0) == QUICK_S
