"""What pyproject.toml admits, and what the layer of lowest versions installs, is one and the same."""

from itertools import zip_longest

import pytest
from environments import LOWEST, PINNED, bounds, versions_in

# Of these a Python in the range has no wheel of the lowest version: the first that it has one of stands beside it.
BY_PYTHON = {"numpy", "pyyaml"}


def _numbers(version: str) -> list[int]:
    return [int(each) for each in version.split(".")]


def _is(version: str, bound: str) -> bool:
    """2.11.0 is 2.11."""
    return all(a == b for a, b in zip_longest(_numbers(version), _numbers(bound), fillvalue=0))


@pytest.mark.parametrize(("name", "bound"), bounds().items())
def test_the_lowest_version_that_is_admitted_is_the_one_that_is_tested(name: str, bound: str) -> None:
    tested = versions_in(LOWEST)[name.lower()]
    assert _is(tested[0], bound), f"{name}>={bound} in pyproject.toml, but {tested[0]} in {LOWEST.name}"
    assert len(tested) == 1 or name in BY_PYTHON


def test_torch_is_pinned_within_its_bounds() -> None:
    (lowest,), (pinned,) = versions_in(LOWEST)["torch"], versions_in(PINNED)["torch"]
    assert _numbers(lowest) <= _numbers(pinned)
