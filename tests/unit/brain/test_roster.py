"""The roster: what is handed on from one to the next is what counting anew gives, whatever happened."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from holdfast.watchdog.brain.roster import Member, MemberState, Roster

NAMES = st.sampled_from([f"m{number}" for number in range(6)])
NODES = st.sampled_from(["n1", "n2", "n3"])
MEMBERS = st.builds(
    Member,
    name=NAMES,
    node=NODES,
    boot=st.just("b"),
    address=st.just("10.0.0.1"),
    local_size=st.sampled_from([1, 8]),
    ports=st.just((7000,)),
    warm=st.booleans(),
    standing=st.sampled_from(MemberState),
    joined_at=st.sampled_from([1.0, 2.0]),
    reentrant=st.booleans(),
)
RANKED = {"m1": None, "m2": None, "elsewhere": None}.keys()


def ask(roster: Roster) -> tuple[object, ...]:
    """Everything that is remembered."""
    return (
        roster.present(1),
        roster.present(8),
        set(roster.absent()),
        set(roster.unheard()),
        set(roster.stayed(RANKED, 1.0)),
        set(roster.respawned()),
        set(roster.beyond(RANKED)),
        [each.name for each in roster.on_nodes(("n1", "n3", "n1"))],
    )


@given(first=st.lists(MEMBERS, unique_by=lambda member: member.name), then=st.lists(MEMBERS, max_size=12))
def test_what_is_handed_on_is_what_counting_anew_gives(first: list[Member], then: list[Member]) -> None:
    roster = Roster.of(*first)
    ask(roster)
    for member in then:
        fields = {name: getattr(member, name) for name in Member.__struct_fields__ if name != "name"}
        roster = roster.changed(member.name, **fields) if member.name in roster else roster.joined(member)
        if member.warm:
            roster = roster.joined(member)
        if not member.reentrant:
            roster = roster.without({member.name, "nobody"})
        if member.local_size == 8:
            roster = roster.lost(("m3", member.name, "nobody"))
        before = msgspec.msgpack.encode(roster)
        anew = msgspec.msgpack.decode(before, type=Roster)
        assert ask(roster) == ask(anew)
        assert (roster, msgspec.msgpack.encode(roster)) == (anew, before), "what is remembered is no part of it"


def a_member(name: str, **fields: object) -> Member:
    given = {"local_size": 1, "ports": (7000,), "warm": True, "standing": MemberState.PRESENT, "joined_at": 1.0}
    return Member(name, "n1", "b", "10.0.0.1", **{**given, **fields})  # type: ignore[arg-type]


def test_a_change_leaves_the_roster_before_as_it_was() -> None:
    before = Roster.of(a_member("m1"), a_member("m2"))
    lost = before.changed("m1", standing=MemberState.LOST)
    assert (before.present(1), lost.present(1)) == (2, 1)
    assert [each.name for each in lost] == ["m1", "m2"], "a changed member keeps its place"
    assert [each.name for each in lost.joined(a_member("m1"))] == ["m2", "m1"], "one that joins again is the last"
    assert [each.name for each in lost.without({"m2", "nobody"})] == ["m1"]


def test_many_that_are_lost_at_once_keep_their_places() -> None:
    before = Roster.of(*(a_member(name) for name in ("m1", "m2", "m3")))
    after = before.lost(("m3", "m1", "nobody"))
    assert [(each.name, each.standing is MemberState.LOST) for each in after] == [
        ("m1", True),
        ("m2", False),
        ("m3", True),
    ]
    assert (before.present(1), after.present(1), set(after.absent())) == (3, 1, {"m1", "m3"})


def test_names_are_asked_about_for_one_round_at_a_time() -> None:
    roster = Roster.of(a_member("m1"), a_member("m2"))
    assert set(roster.beyond({"m1": None}.keys())) == {"m2"}
    assert set(roster.beyond({"m2": None}.keys())) == {"m1"}
