from typing import Annotated

import msgspec
import pytest

from holdfast.api.errors import InvalidInput
from holdfast.api.plainvalues import read_plain


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    count: Annotated[int, msgspec.Meta(ge=1)] = 1
    share: float | None = None


class Sheet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rows: tuple[Row, ...] = ()


def test_a_number_is_one_however_it_is_written() -> None:
    assert read_plain({"name": "a", "share": "1e3", "count": "4"}, Row, "row") == Row("a", 4, 1000.0)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (3, "sheet: 3 is not accepted; give a mapping of names to values"),
        (None, "sheet: None is not accepted; give a mapping of names to values"),
        ({"rows": 3}, "sheet.rows: 3 is not accepted; give a list"),
        (
            {"rows": [{"name": "a"}, {"name": "b", "count": 0}]},
            "sheet.rows[1].count: 0 is not accepted; give a whole",
        ),
        ({"rows": [{"name": "a", "share": "some"}]}, "sheet.rows[0].share: 'some' is not accepted; give a number"),
        ({"rows": [{"name": 3}]}, "sheet.rows[0].name: 3 is not accepted; give a text"),
        ({"rows": [{}]}, "sheet.rows[0].name: (missing) is not accepted; add it"),
        ({"rows": [{"name": "a", "tower": 3}]}, "sheet.rows[0].tower: 3 is not accepted; leave it out"),
        ({"name": "a"}, "sheet.name: 'a' is not accepted; leave it out; there is none of that name"),
    ],
)
def test_what_is_wrong_is_told_by_its_place(given: object, says: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        read_plain(given, Sheet, "sheet")
    assert str(raised.value).startswith(says)
