import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.plan import NodeOrder, Plan
from holdfast.cli.embedded.localcluster import Decision, Observed, PlacementOptions, Start, Stop, decide

TERMS = PlacementOptions(delay_s=2.0)
NEVER = PlacementOptions(replaces=False)


def plan_of(
    members: int,
    spares: int = 0,
    *,
    avoid: tuple[str, ...] = (),
    cordon: tuple[str, ...] = (),
    returned: tuple[str, ...] = (),
    release: tuple[str, ...] = (),
) -> Plan:
    return Plan(
        job="default/gpt",
        number=1,
        members=members,
        spares=spares,
        avoid=tuple(NodeOrder(name, "hot") for name in avoid),
        cordon=tuple(NodeOrder(name, "broken") for name in cordon),
        returned=returned,
        release=release,
    )


def test_an_empty_machine_starts_members_and_spares() -> None:
    assert decide(Observed(), plan_of(2, 1), TERMS, 0.0) == Decision(
        (Start("node-1"), Start("node-2"), Start("node-3"))
    )


def test_a_machine_that_matches_the_plan_is_left_alone() -> None:
    assert decide(Observed(("node-1", "node-2"), (), 2), plan_of(1, 1), TERMS, 0.0) == Decision()


def test_a_lost_node_is_replaced_by_a_new_name_after_the_delay() -> None:
    observed = Observed(("node-1",), (("node-2", 10.0),), 2)
    assert decide(observed, plan_of(2), TERMS, 11.0) == Decision((), next_wakeup=12.0)
    assert decide(observed, plan_of(2), TERMS, 12.0) == Decision((Start("node-3", "node-2"),))


def test_a_lost_node_is_not_replaced_when_replacing_is_refused() -> None:
    observed = Observed(("node-1",), (("node-2", 10.0),), 2)
    assert decide(observed, plan_of(2), NEVER, 99.0) == Decision()


def test_a_lost_node_does_not_keep_a_growing_plan_from_starting_more() -> None:
    observed = Observed(("node-1",), (("node-2", 10.0),), 2)
    assert decide(observed, plan_of(3), NEVER, 99.0) == Decision((Start("node-3"),))


def test_no_two_nodes_are_given_the_same_name_where_a_name_ahead_is_avoided() -> None:
    observed = Observed(("node-1", "node-2"), (("node-3", 10.0),), 3)
    decision = decide(observed, plan_of(4, avoid=("node-4",)), TERMS, 12.0)
    assert decision == Decision((Start("node-5"), Start("node-6", "node-3")))


@pytest.mark.parametrize(
    ("orders", "reason"), [({"avoid": ("node-1",)}, "hot"), ({"cordon": ("node-1",)}, "broken")]
)
def test_a_node_to_keep_away_from_is_stopped(orders: dict[str, tuple[str, ...]], reason: str) -> None:
    observed = Observed(("node-1", "node-2"), (), 2)
    assert decide(observed, plan_of(2, **orders), TERMS, 5.0) == Decision(
        (Stop("node-1", reason, returnable=True),), 5.0
    )


def test_a_name_to_avoid_is_never_given() -> None:
    assert decide(Observed(), plan_of(1, avoid=("node-1", "node-2")), TERMS, 0.0).actions == (Start("node-3"),)


def test_a_shrunken_plan_stops_the_youngest() -> None:
    observed = Observed(("node-1", "node-2", "node-3"), (), 3)
    assert decide(observed, plan_of(1), TERMS, 0.0).actions == (
        Stop("node-3", "the plan wants 1 nodes"),
        Stop("node-2", "the plan wants 1 nodes"),
    )


def test_a_returned_node_comes_back_under_its_name() -> None:
    observed = Observed(("node-1",), (("node-2", 10.0),), 2)
    assert decide(observed, plan_of(2, returned=("node-2",)), NEVER, 10.1) == Decision(
        (Start("node-2", "node-2"),)
    )


def test_an_evicted_node_that_was_replaced_and_is_given_back_goes_before_a_new_one() -> None:
    plan = plan_of(2, returned=("node-2",))
    full = Observed(("node-1", "node-3"), (), 3, evicted=("node-2",))
    assert decide(full, plan, TERMS, 0.0) == Decision()
    short = Observed(("node-1",), (("node-3", 0.0),), 3, evicted=("node-2",))
    assert decide(short, plan, TERMS, 0.0).actions == (Start("node-2", "node-2"),)
    assert decide(short, plan_of(2), NEVER, 99.0) == Decision()


def test_a_node_whose_ranks_went_elsewhere_is_stopped_and_replaced() -> None:
    observed = Observed(("node-1", "node-2"), (), 2)
    assert decide(observed, plan_of(2, release=("node-2", "node-9")), TERMS, 5.0) == Decision(
        (Stop("node-2", "its ranks went elsewhere"),), 5.0
    )


@given(
    up=st.integers(0, 6),
    down=st.integers(0, 6),
    members=st.integers(1, 5),
    spares=st.integers(0, 3),
    avoided=st.sets(st.integers(1, 12), max_size=4),
)
def test_the_machine_comes_to_match_any_plan_and_then_rests(
    up: int, down: int, members: int, spares: int, avoided: set[int]
) -> None:
    plan = plan_of(members, spares, avoid=tuple(f"node-{number}" for number in avoided))
    names_up = [f"node-{number}" for number in range(1, up + 1)]
    names_down = {f"node-{number}": 0.0 for number in range(up + 1, up + down + 1)}
    highest, now = up + down, 0.0
    for _ in range(10):
        decision = decide(Observed(tuple(names_up), tuple(names_down.items()), highest), plan, TERMS, now)
        for action in decision.actions:
            if isinstance(action, Stop):
                names_up.remove(action.name)
                names_down[action.name] = now
            else:
                assert action.name not in names_up
                names_down.pop(action.replaces or "", None)
                names_up.append(action.name)
                highest = max(highest, int(action.name.partition("-")[2]))
        now = decision.next_wakeup if decision.next_wakeup is not None else now + 1.0
    assert len(names_up) == members + spares
    assert not {f"node-{number}" for number in avoided} & set(names_up)
