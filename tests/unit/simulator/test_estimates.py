import random

import pytest

from holdfast.simulator.estimate import at_most, estimate, is_beyond_noise, seeds_to_tell, student

# Of 95 %, both sides: https://www.itl.nist.gov/div898/handbook/eda/section3/eda3672.htm
TABLE = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262, 10: 2.228, 19: 2.093, 30: 2.042, 100: 1.984}


@pytest.mark.parametrize("freedom", TABLE)
def test_students_t_is_that_of_the_tables(freedom: int) -> None:
    assert student(freedom) == pytest.approx(TABLE[freedom], abs=6e-4)


@pytest.mark.parametrize("count", [2, 5, 20])
def test_the_interval_holds_the_mean_as_often_as_it_says(count: int) -> None:
    """2,000 times with normal figures: 95 % of them, give or take four standard errors of that share."""
    chance = random.Random(count)
    held = 0
    for _ in range(2000):
        found = estimate([chance.gauss(3.0, 2.0) for _ in range(count)])
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 3.0 <= found.high
    assert held / 2000 == pytest.approx(0.95, abs=0.02)


def test_the_interval_of_rare_counts_is_nearly_as_good() -> None:
    """Counts with a mean of 8, of 20 seeds, as faults of a run are."""
    chance = random.Random(8)
    held = 0
    for _ in range(1000):
        counts = []
        for _ in range(20):
            count, at = 0, chance.expovariate(1.0)
            while at < 8.0:
                count, at = count + 1, at + chance.expovariate(1.0)
            counts.append(float(count))
        found = estimate(counts)
        held += (found.low or 0.0) <= 8.0 <= (found.high or 0.0)
    assert 0.92 <= held / 1000 <= 0.98


def test_one_run_has_no_interval() -> None:
    found = estimate([4.0])
    assert (found.mean, found.low, found.high, found.tells) == (4.0, None, None, False)


def test_an_interval_ends_where_the_figure_does() -> None:
    found = estimate([0.1, 0.9, 1.0], 0.0, 1.0)
    assert (found.low, found.high) == (0.0, 1.0)


def test_what_no_run_had_may_still_come() -> None:
    assert at_most(20) == pytest.approx(3 / 20, rel=0.01)


def test_as_many_seeds_as_it_says_do_tell() -> None:
    """Differences with a mean of half their spread: four of five tell with the seeds it asks for."""
    chance = random.Random(1)
    needed = seeds_to_tell([chance.gauss(0.5, 1.0) for _ in range(5000)])
    assert needed == pytest.approx((1.96 + 0.84) ** 2 / 0.25, abs=4)
    told = sum(estimate([chance.gauss(0.5, 1.0) for _ in range(needed or 2)]).tells for _ in range(500))
    assert told / 500 == pytest.approx(0.8, abs=0.08)


def test_counts_that_differ_alike_tell_once_chance_would_not_have_them_so() -> None:
    """Five heads in a row are not rare enough, six are."""
    assert not is_beyond_noise([1.0] * 5, counts=True)
    assert seeds_to_tell([1.0] * 5) == 6
    assert is_beyond_noise([1.0] * 6, counts=True)
    assert not is_beyond_noise([0.0] * 20, counts=True)
    assert not is_beyond_noise([3.0], counts=True)
    assert is_beyond_noise([1.5, 1.5]), "what is measured and exactly alike is the policies' doing"
    assert is_beyond_noise([1.0, 2.0, 1.0], counts=True) == estimate([1.0, 2.0, 1.0]).tells


@pytest.mark.parametrize("same", [[], [1.0], [0.0, 0.0], [1.0, -1.0]])
def test_where_nothing_differs_no_seed_would_tell(same: list[float]) -> None:
    assert seeds_to_tell(same) is None
