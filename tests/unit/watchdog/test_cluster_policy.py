"""What the cluster says of every job, and what a job says itself."""

from holdfast.api.policy import Policy, XidAction
from holdfast.watchdog.clusterpolicy import NO_CLUSTER_POLICY, ClusterPolicy


def policy(**xid_actions: XidAction) -> Policy:
    actions = {int(name.removeprefix("xid_")): action for name, action in xid_actions.items()}
    return Policy("research/gpt", 1, 2, xid_actions=actions)


def test_the_jobs_own_word_comes_before_the_clusters() -> None:
    cluster = ClusterPolicy({63: XidAction.EVICT, 31: XidAction.RESTART})
    applied = cluster.applied_to(policy(xid_31=XidAction.WATCH, xid_94=XidAction.EVICT))
    assert applied.xid_actions == {63: XidAction.EVICT, 31: XidAction.WATCH, 94: XidAction.EVICT}


def test_the_same_policy_twice_is_the_same() -> None:
    cluster = ClusterPolicy({63: XidAction.EVICT})
    once = cluster.applied_to(policy())
    assert cluster.applied_to(policy()) == once
    assert cluster.applied_to(once) == once


def test_without_a_word_nothing_is_changed() -> None:
    assert NO_CLUSTER_POLICY.applied_to(policy()) == policy()
