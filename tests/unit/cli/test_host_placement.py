"""Which of the hosts that somebody gave run a launcher."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.plan import NodeOrder, NodeState, Plan
from holdfast.cli.hosts.placement import Decision, Host, Start, Stop, decide, shortage
from holdfast.cli.hosts.reach import READY, Standing

GONE = Standing(NodeState.GONE, "Slurm says down*: Not responding")
DRAINING = Standing(NodeState.DRAINING, "Slurm says draining: firmware")
SILENT = Standing(NodeState.NOT_READY, "it does not answer")


def plan_of(
    members: int,
    spares: int = 0,
    *,
    avoid: tuple[str, ...] = (),
    cordon: tuple[str, ...] = (),
    release: tuple[str, ...] = (),
) -> Plan:
    return Plan(
        job="default/gpt",
        number=1,
        members=members,
        spares=spares,
        avoid=tuple(NodeOrder(name, "hot") for name in avoid),
        cordon=tuple(NodeOrder(name, "broken") for name in cordon),
        release=release,
    )


def test_members_and_spares_start_on_the_first_hosts() -> None:
    hosts = [Host("a"), Host("b"), Host("c"), Host("d")]
    assert decide(hosts, plan_of(2, 1), 0.0) == Decision((Start("a"), Start("b"), Start("c")))


def test_hosts_that_match_the_plan_are_left_alone() -> None:
    assert decide([Host("a", is_up=True), Host("b", is_up=True), Host("c")], plan_of(2), 0.0) == Decision()


@pytest.mark.parametrize(
    ("host", "plan", "reason"),
    [
        (Host("b", is_up=True), plan_of(2, avoid=("b",)), "hot"),
        (Host("b", is_up=True), plan_of(2, cordon=("b",)), "broken"),
        (Host("b", is_up=True), plan_of(2, release=("b",)), "its ranks went elsewhere"),
        (Host("b", is_up=True, standing=GONE), plan_of(2), GONE.reason),
        (Host("b", is_up=True), plan_of(1), "the plan wants 1 nodes"),
    ],
)
def test_what_ends_a_host(host: Host, plan: Plan, reason: str) -> None:
    decision = decide([Host("a", is_up=True), host, Host("c")], plan, 7.0)
    assert decision == Decision((Stop("b", reason),), next_wakeup=7.0)


@pytest.mark.parametrize("standing", [DRAINING, SILENT])
def test_a_host_that_is_drained_or_silent_works_on_and_gets_nothing_new(standing: Standing) -> None:
    running = Host("a", is_up=True, standing=standing)
    assert decide([running, Host("b")], plan_of(1), 0.0) == Decision()
    assert decide([Host("a", standing=standing), Host("b")], plan_of(1), 0.0) == Decision((Start("b"),))


def test_a_host_whose_launcher_ended_rests_first_and_others_go_before_it() -> None:
    hosts = [Host("a", rests_until=5.0), Host("b", rests_until=3.0), Host("c")]
    assert decide(hosts, plan_of(1), 0.0) == Decision((Start("c"),))
    assert decide(hosts, plan_of(3), 4.0) == Decision((Start("c"), Start("b")), next_wakeup=5.0)
    assert decide(hosts, plan_of(3), 5.0) == Decision((Start("c"), Start("b"), Start("a")))


def test_hosts_are_too_few_once_those_that_can_come_back_are_not_enough() -> None:
    hosts = [Host("a", is_up=True), Host("b", standing=SILENT), Host("c", standing=GONE)]
    assert shortage(hosts, plan_of(2), 2) is None
    assert shortage(hosts, plan_of(2, cordon=("b",)), 2) == "1 of 3 nodes can be used, and the job needs 2"
    assert shortage([Host("a"), Host("b", standing=DRAINING)], plan_of(2), 2) is not None


STANDINGS = st.sampled_from([READY, GONE, DRAINING, SILENT, Standing(NodeState.UNKNOWN)])


@given(
    st.lists(st.tuples(st.booleans(), STANDINGS, st.floats(0.0, 9.0)), max_size=6),
    st.integers(0, 4),
    st.integers(0, 2),
    st.sets(st.sampled_from("abcdef")),
    st.sets(st.sampled_from("abcdef")),
)
def test_repeated_decisions_come_to_rest_and_never_use_what_is_kept_away_from(
    seen: list[tuple[bool, Standing, float]], members: int, spares: int, cordon: set[str], release: set[str]
) -> None:
    hosts = {name: Host(name, *each) for name, each in zip("abcdef", seen, strict=False)}
    plan = plan_of(members, spares, cordon=tuple(cordon), release=tuple(release - cordon))
    for _ in range(10):
        decision = decide(list(hosts.values()), plan, 10.0)
        for action in decision.actions:
            was = hosts[action.name]
            is_start = isinstance(action, Start)
            assert was.is_up is not is_start
            assert not is_start or (action.name not in cordon and was.standing.takes_work)
            hosts[action.name] = Host(action.name, is_up=is_start, standing=was.standing)
        plan = plan_of(members, spares, cordon=tuple(cordon))  # who was released has left
        if not decision.actions:
            break
    assert decision.actions == ()
    up = {name for name, host in hosts.items() if host.is_up}
    usable = {name for name, host in hosts.items() if host.standing.takes_work} - cordon
    assert len(up) <= members + spares
    assert len(up) == members + spares or usable <= up
