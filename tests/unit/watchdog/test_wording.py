"""Lists of names as a human reads them."""

from holdfast.watchdog.wording import in_words, ranks_in_words


def test_a_few_names_are_told_in_order() -> None:
    assert in_words(["b", "a"]) == "a, b"


def test_many_names_are_counted() -> None:
    told = in_words(f"m{number:03d}" for number in range(1000))
    assert told.startswith("m000, m001, ")
    assert told.endswith("m015 and 984 more")


def test_ranks_are_told_in_order_neighbours_together() -> None:
    assert ranks_in_words([3]) == "rank 3"
    assert ranks_in_words([7, 0, 2, 1, 3]) == "ranks 0-3, 7"


def test_beyond_some_runs_the_rest_of_the_ranks_is_counted() -> None:
    told = ranks_in_words(range(0, 100, 2))
    assert told.endswith("28, 30 and 34 more")
