"""Who gives way when more strangers come than there is room for, and when."""

from holdfast.wire.door import Strangers


def test_of_a_source_with_too_many_the_oldest_gives_way() -> None:
    strangers: Strangers[int] = Strangers(at_most=10, of_one_source=2)
    assert [strangers.come(key, "10.0.0.1", 0.0) for key in range(4)] == [None, None, 0, 1]
    assert strangers.come(9, "10.0.0.2", 0.0) is None
    assert len(strangers) == 3


def test_of_too_many_altogether_the_oldest_of_the_source_with_the_most_gives_way() -> None:
    strangers: Strangers[int] = Strangers(at_most=3, of_one_source=2)
    assert strangers.come(1, "10.0.0.1", 0.0) is None
    assert [strangers.come(key, "10.0.0.2", 0.0) for key in (2, 3)] == [None, None]
    assert strangers.come(4, "10.0.0.3", 0.0) == 2


def test_who_is_known_or_gone_is_no_stranger_any_more() -> None:
    strangers: Strangers[int] = Strangers(at_most=2, of_one_source=2)
    strangers.come(1, "10.0.0.1", 0.0)
    for _ in range(2):
        strangers.forget(1)
    assert len(strangers) == 0
    assert [strangers.come(key, "10.0.0.1", 0.0) for key in (2, 3)] == [None, None]


def test_each_has_its_time() -> None:
    strangers: Strangers[int] = Strangers(at_most=9, of_one_source=9, patience_s=10.0)
    assert strangers.next_wakeup() is None
    for key, at in ((1, 0.0), (2, 4.0)):
        strangers.come(key, "10.0.0.1", at)
    assert strangers.next_wakeup() == 10.0
    assert strangers.overdue(9.9) == []
    assert strangers.overdue(10.0) == [1]
    assert strangers.overdue(14.0) == [1, 2]
