from decimal import Decimal

import pytest

from holdfast.operator.decide.quantity import quantity_of


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1024Mi", "1Gi"),
        ("500m", "0.5"),
        (4, "4"),
        ("1e3", "1k"),
        ("1k", 1000),
        ("100Ki", "102400"),
        (".5", "500m"),
    ],
)
def test_the_same_amount_is_the_same_however_it_is_written(one: object, other: object) -> None:
    assert quantity_of(one) == quantity_of(other) is not None


def test_amounts_are_numbers() -> None:
    assert quantity_of("-1500m") == Decimal("-1.5")
    assert quantity_of("2Gi") == 2 * 1024**3


@pytest.mark.parametrize(
    "text", ["", "Gi", "1 Gi", "1GB", "one", "1e", "1ee3", True, None, [], {}, "9" * 100, "1e999", "١"]
)
def test_what_is_no_quantity_is_none(text: object) -> None:
    assert quantity_of(text) is None
