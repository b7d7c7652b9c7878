"""Reading one's own writes: versions are only ever compared for being the same."""

import msgspec
import pytest

from holdfast.operator.kube.cache import Cache, Change
from holdfast.operator.kube.objects import Metadata, Owned


class Noted:
    """A cache, and what it said of its changes: versions before and after."""

    def __init__(self) -> None:
        self.changes: list[tuple[str | None, str | None]] = []
        self.cache: Cache[Owned] = Cache(lambda old, new: self.changes.append((_version(old), _version(new))))

    @property
    def held(self) -> str | None:
        return _version(self.cache.get("ns", "a"))

    def write(self, version: str, uid: str = "u1") -> None:
        with self.cache.writing("ns", "a") as flight:
            flight.landed(thing(version, uid))


def thing(version: str, uid: str = "u1", name: str = "a") -> Owned:
    return Owned(Metadata(name=name, namespace="ns", uid=uid, resource_version=version))


def _version(item: Owned | None) -> str | None:
    return None if item is None else item.metadata.resource_version


@pytest.fixture
def noted() -> Noted:
    return Noted()


def test_a_write_is_seen_at_once(noted: Noted) -> None:
    noted.write("7")
    assert noted.held == "7"
    assert noted.changes == [(None, "7")]


def test_events_from_before_our_write_do_not_undo_it(noted: Noted) -> None:
    noted.cache.observe(Change.ADDED, thing("1"))
    noted.write("7")
    noted.cache.observe(Change.MODIFIED, thing("5"))
    assert noted.held == "7"
    noted.cache.observe(Change.MODIFIED, thing("7"))
    noted.cache.observe(Change.MODIFIED, thing("9"))
    assert noted.held == "9"


def test_an_answer_that_comes_after_its_event_does_not_go_back(noted: Noted) -> None:
    noted.cache.observe(Change.ADDED, thing("1"))
    with noted.cache.writing("ns", "a") as flight:
        noted.cache.observe(Change.MODIFIED, thing("7"))
        noted.cache.observe(Change.MODIFIED, thing("9"))
        flight.landed(thing("7"))
    assert noted.held == "9"
    noted.cache.observe(Change.MODIFIED, thing("11"))
    assert noted.held == "11"


def test_a_write_that_changed_nothing_waits_for_no_event(noted: Noted) -> None:
    noted.cache.observe(Change.ADDED, thing("1"))
    noted.write("1")
    noted.cache.observe(Change.MODIFIED, thing("2"))
    assert noted.held == "2"


def test_a_write_that_failed_leaves_the_cache_alone(noted: Noted) -> None:
    noted.cache.observe(Change.ADDED, thing("1"))
    with pytest.raises(RuntimeError, match="refused"), noted.cache.writing("ns", "a"):
        raise RuntimeError("refused")
    noted.cache.observe(Change.MODIFIED, thing("2"))
    assert noted.held == "2"


def test_a_deletion_is_final_also_while_a_write_is_awaited(noted: Noted) -> None:
    noted.write("7")
    noted.cache.observe(Change.DELETED, thing("9"))
    assert noted.held is None
    noted.cache.observe(Change.ADDED, thing("12", uid="u2"))
    assert noted.held == "12"


def test_the_deletion_of_an_earlier_object_of_the_name_is_not_ours(noted: Noted) -> None:
    noted.cache.observe(Change.ADDED, thing("1", uid="u1"))
    with noted.cache.writing("ns", "a") as flight:
        flight.deleted("u1")
    noted.write("7", uid="u2")
    noted.cache.observe(Change.DELETED, thing("5", uid="u1"))
    assert noted.held == "7"


def test_what_we_deleted_does_not_come_back_with_an_old_event(noted: Noted) -> None:
    noted.cache.observe(Change.ADDED, thing("1"))
    with noted.cache.writing("ns", "a") as flight:
        flight.deleted("u1")
    noted.cache.observe(Change.MODIFIED, thing("2"))
    assert noted.held is None
    noted.cache.observe(Change.DELETED, thing("3"))
    noted.cache.observe(Change.ADDED, thing("5", uid="u2"))
    assert noted.held == "5"


def test_a_list_replaces_all_of_its_namespace_and_nothing_else(noted: Noted) -> None:
    elsewhere = msgspec.structs.replace(thing("1").metadata, namespace="other")
    noted.cache.observe(Change.ADDED, thing("1"))
    noted.cache.observe(Change.ADDED, thing("2", name="b"))
    noted.cache.observe(Change.ADDED, Owned(elsewhere))
    noted.cache.replace("ns", [thing("4")], noted.cache.begin_list(), "5")
    assert {key: _version(item) for key, item in noted.cache.objects.items()} == {
        ("ns", "a"): "4",
        ("other", "a"): "1",
    }


def test_a_list_that_began_before_our_write_does_not_undo_it(noted: Noted) -> None:
    begun = noted.cache.begin_list()
    noted.write("7")
    noted.cache.replace("ns", [], begun, "6")
    assert noted.held == "7"
    noted.cache.replace("ns", [thing("5")], begun, "6")
    assert noted.held == "7"
    noted.cache.observe(Change.MODIFIED, thing("7"))
    noted.cache.observe(Change.MODIFIED, thing("8"))
    assert noted.held == "8"


@pytest.mark.parametrize("listed", ["7", "9"])
def test_a_list_that_has_our_write_is_not_followed_by_its_event(noted: Noted, listed: str) -> None:
    begun = noted.cache.begin_list()
    noted.write("7")
    noted.cache.replace("ns", [thing(listed)], begun, "9")
    assert noted.held == listed
    noted.cache.observe(Change.MODIFIED, thing("11"))
    assert noted.held == "11"


def test_what_we_made_and_others_deleted_while_it_was_listed_is_gone(noted: Noted) -> None:
    begun = noted.cache.begin_list()
    noted.write("7")
    noted.cache.replace("ns", [], begun, "9")
    assert noted.held is None


def test_a_list_that_began_after_our_write_settles_it(noted: Noted) -> None:
    noted.write("7")
    noted.cache.replace("ns", [thing("9")], noted.cache.begin_list(), "10")
    noted.cache.observe(Change.MODIFIED, thing("11"))
    assert noted.held == "11"


def test_a_list_that_began_before_our_deletion_does_not_bring_it_back(noted: Noted) -> None:
    noted.cache.observe(Change.ADDED, thing("1"))
    begun = noted.cache.begin_list()
    with noted.cache.writing("ns", "a") as flight:
        flight.deleted("u1")
    noted.cache.replace("ns", [thing("1")], begun, "1")
    assert noted.held is None


def test_our_own_write_is_no_news_when_the_watch_brings_it(noted: Noted) -> None:
    noted.cache.observe(Change.ADDED, thing("1"))
    noted.write("7")
    noted.cache.observe(Change.MODIFIED, thing("7"))
    noted.cache.replace("", [thing("7")], noted.cache.begin_list(), "8")
    assert noted.changes == [(None, "1"), ("1", "7")]


@pytest.mark.parametrize("others", [(), ("2",)], ids=["deleted by others", "changed by others"])
def test_an_answer_that_comes_after_a_newer_list_is_passed_over(noted: Noted, others: tuple[str, ...]) -> None:
    with noted.cache.writing("ns", "a") as flight:
        noted.cache.replace("ns", [thing(each) for each in others], noted.cache.begin_list(), "3")
        flight.landed(thing("1"))
    assert noted.held == (others[0] if others else None)
    noted.cache.observe(Change.ADDED if not others else Change.MODIFIED, thing("4", uid="u1"))
    assert noted.held == "4"


def test_an_answer_that_tells_of_what_was_deleted_meanwhile_is_passed_over(noted: Noted) -> None:
    noted.cache.observe(Change.ADDED, thing("1"))
    with noted.cache.writing("ns", "a") as flight:
        noted.cache.observe(Change.DELETED, thing("2"))
        flight.landed(thing("1"))  # it was there already, or the write changed nothing
    assert noted.held is None
    noted.cache.observe(Change.ADDED, thing("3", uid="u2"))
    assert noted.held == "3"
