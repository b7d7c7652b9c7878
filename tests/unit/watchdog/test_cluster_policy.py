"""What the cluster says of every job, and what a job says itself."""

import pytest
from forgetful_store import MemoryStore

from holdfast.api.event import JobSubmitted
from holdfast.api.policy import CordonOn, Policy, XidAction
from holdfast.watchdog import brain
from holdfast.watchdog.senses import senses_for
from holdfast.watchdog.server.watchdog import Watchdog
from holdfast.watchdog.settings import NO_CLUSTER_POLICY, ClusterPolicy


def policy(**xid_actions: XidAction) -> Policy:
    actions = {int(name.removeprefix("xid_")): action for name, action in xid_actions.items()}
    return Policy("research/gpt", 1, 2, xid_actions=actions)


def test_the_clusters_words_of_now_take_the_place_of_earlier_ones() -> None:
    job = policy(xid_31=XidAction.WATCH)
    before = ClusterPolicy({63: XidAction.EVICT, 31: XidAction.RESTART}).applied_to(job)
    now = ClusterPolicy({94: XidAction.EVICT}).applied_to(before)
    assert (now.xid_actions, now.cluster_xid_actions) == ({31: XidAction.WATCH}, {94: XidAction.EVICT})


def test_the_same_policy_twice_is_the_same() -> None:
    cluster = ClusterPolicy({63: XidAction.EVICT})
    once = cluster.applied_to(policy())
    assert cluster.applied_to(policy()) == once
    assert cluster.applied_to(once) == once


def test_without_a_word_nothing_is_changed() -> None:
    assert NO_CLUSTER_POLICY.applied_to(policy()) == policy()


@pytest.mark.parametrize("generation", [0, 3])
async def test_jobs_of_before_an_upgrade_are_judged_by_what_the_cluster_says_now(generation: int) -> None:
    store, name = MemoryStore(), "research/gpt"
    submitted = Policy(name, 1, 2, uid="u" if generation else "", generation=generation)
    store.append(name, (JobSubmitted(submitted),), at=1.0, after=0, fence=store.claim())
    cluster = ClusterPolicy({63: XidAction.EVICT}, CordonOn.SENSORS)
    last = []
    for _ in range(2):
        watchdog = Watchdog(store, brain=brain, senses_for=senses_for, fenced=pytest.fail, cluster=cluster)
        watchdog.start()
        host = watchdog.known(name)
        assert host is not None
        known = host.job.state.policy
        assert known is not None
        assert (known.cordon_on, known.cluster_xid_actions) == (CordonOn.SENSORS, {63: XidAction.EVICT})
        assert (known.generation, known.xid_actions) == (generation, {})
        last.append(sum(isinstance(line.event, JobSubmitted) for line in store.tail(name, 0)))
    assert last == [2, 2], "said once, and journaled: a replay needs nothing else"
