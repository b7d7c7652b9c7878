"""Damaged TrainingJobs against a real API server: each is refused by it, or by the operator's reader, in words."""

import copy
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from apiserver import Refused
from full_spec import FULL_SPEC
from operator_rig import Cluster, job_manifest

from holdfast.api.errors import InvalidSpec
from holdfast.api.trainingjob import policy_of, read_trainingjob

pytestmark = pytest.mark.kubernetes

CASES = 400
SEED = 7
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 2**31, 2**63 - 1, 2**63, 10**40, 1.5, 1e300, -0.0, "", "x" * 5000, "\x00", "\u202e",
    "9" * 400, "1e999", "-5m", "1h" * 50, "10%", "101%",
    [], [[]], [None], {}, {"": ""}, {"x" * 300: 1}, ["a"] * 2000,
)  # fmt: skip


def deep(levels: int) -> Any:
    """A list of lists."""
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container of a document with a key of it."""
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from places(value[key])


def damaged(whole: dict[str, Any], dice: random.Random) -> dict[str, Any]:
    """The job with one to three places of its spec changed."""
    job = {"spec": copy.deepcopy(whole["spec"])}
    for _ in range(dice.randrange(1, 4)):
        holder, key = dice.choice(list(places(job)))
        is_field = isinstance(holder, dict) and holder is not job
        match dice.randrange(5):
            case 0 if is_field:
                del holder[key]
            case 1 if is_field:
                other = dice.choice(("unknown", key.upper(), f"{key} ", "x" * 400))
                holder[other] = copy.deepcopy(holder[key])
            case 2:
                holder[key] = deep(dice.choice((3, 60)))
            case _:
                holder[key] = copy.deepcopy(dice.choice(ODD))
    return {**whole, **job}


async def outcome(cluster: Cluster, job: dict[str, Any]) -> tuple[str, str]:
    """Who refuses the job, and what is said; or that it is another job."""
    try:
        kept = await cluster.api.call("POST", f"{cluster.path()}?dryRun=All", job)
    except Refused as refused:
        return f"server, {refused.code}", str(refused.body["message"])
    try:
        policy_of(read_trainingjob(kept))
    except InvalidSpec as invalid:
        return "reader", str(invalid)
    return "another job", "taken"


async def test_a_damaged_job_is_refused_in_words_or_is_another_job(cluster: Cluster) -> None:
    dice = random.Random(SEED)
    whole = job_manifest(cluster.namespace, "gpt", **FULL_SPEC)
    assert (await outcome(cluster, whole))[0] == "another job"
    seen: Counter[str] = Counter()
    for number in range(CASES):
        job = damaged(whole, dice)
        said = f"case {number} of seed {SEED}: {str(job['spec'])[:500]}"
        try:
            who, words = await outcome(cluster, job)
        except Exception as error:
            raise AssertionError(f"{said}: {type(error).__name__}: {error}") from error
        assert words, said
        seen[who] += 1
    assert set(seen) <= {"server, 400", "server, 422", "reader", "another job"}, seen
    assert {"server, 422", "reader", "another job"} <= set(seen), seen
