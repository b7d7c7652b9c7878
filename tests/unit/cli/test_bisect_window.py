"""Which steps of two runs are trained again."""

import pytest

from holdfast.cli.commands.compare import window


@pytest.mark.parametrize(
    ("equals", "parts", "newest", "wanted"),
    [
        ((2, 4), (7, 8), (20, 20), (4, 7)),  # up to the first step that is known to differ
        ((), (1, None), (20, 20), (0, 1)),  # never alike: afresh
        ((2, 4, 6, 8), (5, None), (8, 8), (4, 5)),  # equal again later says nothing
        ((2, 4, 6, 8), (None, None), (8, 8), (6, 8)),  # nothing is known to differ: the end
        ((10,), (900, None), (1000, 1000), (10, 110)),  # no more than was asked for
    ],
)
def test_it_begins_at_the_newest_common_state_and_ends_where_they_are_known_to_differ(
    equals: tuple[int, ...], parts: tuple[int | None, ...], newest: tuple[int, ...], wanted: tuple[int, int]
) -> None:
    assert window(equals, parts, newest, 100) == wanted
