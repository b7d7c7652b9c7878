import msgspec
import pytest

from holdfast.trainer.storetable import (
    Add,
    Answer,
    Append,
    Await,
    Check,
    CompareSet,
    Count,
    Delete,
    Hello,
    Request,
    Set,
    StoreTable,
)

ALICE, BOB = 1, 2


def table(**values: bytes) -> StoreTable:
    filled = StoreTable("research/gpt", 7)
    for key, value in values.items():
        filled.ask(ALICE, Set(key, value), 0.0)
    return filled


def only(answers: list[tuple[int, Answer]]) -> Answer:
    ((asker, answer),) = answers
    assert asker == ALICE
    return answer


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (Hello("research/gpt", 7), Answer()),
        (Check(("one",)), Answer(number=1)),
        (Check(("one", "two")), Answer(number=0)),
        (Count(), Answer(number=1)),
        (Delete("one"), Answer(number=1)),
        (Delete("two"), Answer(number=0)),
        (Add("two", 3), Answer(number=3)),
        (CompareSet("one", b"1", b"2"), Answer(value=b"2")),
        (CompareSet("one", b"other", b"2"), Answer(value=b"1")),
        (CompareSet("two", b"", b"2"), Answer(value=b"2")),
        (CompareSet("two", b"other", b"2"), Answer(value=b"other")),
        (Await(("one",), 1.0), Answer(value=b"1")),
    ],
    ids=repr,
)
def test_a_request_that_needs_nobody_else_is_answered_at_once(request_: Request, expected: Answer) -> None:
    answer = only(table(one=b"1").ask(ALICE, request_, 0.0))
    assert answer == expected
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(answer), type=Answer) == expected


def test_numbers_are_kept_as_decimal_text() -> None:
    counted = table()
    counted.ask(ALICE, Add("ready", 2), 0.0)
    assert only(counted.ask(ALICE, Add("ready", 1), 0.0)).number == 3
    assert only(counted.ask(ALICE, Await(("ready",), 1.0), 0.0)).value == b"3"


def test_appending_begins_with_nothing() -> None:
    joined = table()
    joined.ask(ALICE, Append("log", b"a"), 0.0)
    joined.ask(ALICE, Append("log", b"b"), 0.0)
    assert only(joined.ask(ALICE, Await(("log",), 1.0), 0.0)).value == b"ab"


def test_who_waits_is_answered_when_the_last_key_is_set() -> None:
    waited = table()
    assert waited.ask(ALICE, Await(("one", "two"), 10.0), 0.0) == []
    assert waited.ask(BOB, Set("one", b"1"), 1.0) == [(BOB, Answer())]
    assert waited.ask(BOB, Set("two", b"2"), 2.0) == [(BOB, Answer()), (ALICE, Answer(value=b"2"))]
    assert waited.next_wakeup() is None


def test_who_waits_too_long_is_told_which_keys_are_missing() -> None:
    waited = table(one=b"1")
    waited.ask(ALICE, Await(("one", "two"), 10.0), 5.0)
    assert waited.next_wakeup() == 15.0
    assert waited.settle(14.9) == []
    assert only(waited.settle(15.0)).refused == "wait timeout after 10 s for keys: two"


def test_who_is_gone_is_not_answered() -> None:
    waited = table()
    waited.ask(ALICE, Await(("one",), 10.0), 0.0)
    waited.forget(ALICE)
    assert waited.ask(BOB, Set("one", b"1"), 1.0) == [(BOB, Answer())]


@pytest.mark.parametrize("stranger", [Hello("research/gpt", 6), Hello("research/bert", 7)], ids=repr)
def test_the_rank_of_another_round_or_job_is_turned_away(stranger: Hello) -> None:
    assert "this is the store of research/gpt round 7" in only(table().ask(ALICE, stranger, 0.0)).refused
