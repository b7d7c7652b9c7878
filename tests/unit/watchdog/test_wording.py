"""Lists of names as a human reads them."""

from holdfast.watchdog.wording import in_words


def test_a_few_names_are_told_in_order() -> None:
    assert in_words(["b", "a"]) == "a, b"


def test_many_names_are_counted() -> None:
    told = in_words(f"m{number:03d}" for number in range(1000))
    assert told.startswith("m000, m001, ")
    assert told.endswith("m015 and 984 more")
