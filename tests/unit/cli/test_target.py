from pathlib import Path

import pytest

from holdfast.api.errors import InvalidInput, Unavailable
from holdfast.cli.target import Place, Program, Surroundings, Target, only_one, place_of, split_job


def never() -> Surroundings:
    raise AssertionError("a flag says it: nobody looks around")


@pytest.mark.parametrize(
    ("target", "place"),
    [
        (Target(program=Program.KUBECTL), Place.CLUSTER),
        (Target(program=Program.KUBECTL, namespace="a"), Place.CLUSTER),
        (Target(state_dir=Path("x")), Place.STATE_DIRECTORY),
        (Target(watchdog="h:1", token_file=Path("t")), Place.ADDRESS),
        (Target(namespace="a"), Place.CLUSTER),
        (Target(context="c"), Place.CLUSTER),
        (Target(kubeconfig=Path("k")), Place.CLUSTER),
        (Target(all_namespaces=True), Place.CLUSTER),
    ],
)
def test_a_flag_says_where_to_look(target: Target, place: Place) -> None:
    assert place_of(target, never) is place


@pytest.mark.parametrize(
    ("surroundings", "place"),
    [(Surroundings.LOCAL_RUN, Place.STATE_DIRECTORY), (Surroundings.CLUSTER_ACCESS, Place.CLUSTER)],
)
def test_without_a_flag_a_local_run_comes_before_a_cluster(surroundings: Surroundings, place: Place) -> None:
    assert place_of(Target(job="gpt"), lambda: surroundings) is place


def test_without_a_flag_a_run_or_a_cluster_every_way_to_name_one_is_told() -> None:
    with pytest.raises(Unavailable, match="--state-dir, a watchdog with --watchdog, or a cluster with --context"):
        place_of(Target(), lambda: Surroundings.NOTHING)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (Target(program=Program.KUBECTL, state_dir=Path("x")), "--state-dir: .* leave it out; kubectl holdfast"),
        (Target(program=Program.KUBECTL, watchdog="h:1"), "--watchdog: .* leave it out; kubectl holdfast"),
        (Target(state_dir=Path("x"), namespace="a"), "--state-dir: .* leave it out; --namespace means a cluster"),
        (Target(watchdog="h:1", context="c"), "--watchdog: .* leave it out; --context means a cluster"),
        (Target(watchdog="h:1", state_dir=Path("x")), "--watchdog: .* give either this or --state-dir"),
        (Target(token_file=Path("t")), "--token-file: .* give it together with --watchdog"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(target: Target, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        place_of(target, never)


def test_a_job_is_named_with_or_without_its_namespace() -> None:
    assert split_job("gpt", "research") == ("research", "gpt")
    assert split_job("other/gpt", "research") == ("other", "gpt")


@pytest.mark.parametrize("named", ["", "/gpt", "a/", "a/b/c"])
def test_what_is_no_name_of_a_job_is_refused(named: str) -> None:
    with pytest.raises(InvalidInput, match="write NAME, or NAMESPACE/NAME"):
        split_job(named, "research")


def test_the_only_job_needs_no_name() -> None:
    assert only_one(("gpt",), "namespace a") == "gpt"
    with pytest.raises(InvalidInput, match="there is no job in namespace a"):
        only_one((), "namespace a")
    with pytest.raises(InvalidInput, match="name one of those in namespace a: gpt, llama"):
        only_one(("gpt", "llama"), "namespace a")
    with pytest.raises(InvalidInput, match="j9 and more"):
        only_one(tuple(f"j{place}" for place in range(11)), "namespace a")
