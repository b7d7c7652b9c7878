"""What a job carries of its plan, where it is wrong: refused by its name, before anything is done."""

import pytest

from holdfast.api.errors import InvalidInput, InvalidSpec
from holdfast.api.planned import PLAN_ANNOTATION, carried
from holdfast.api.policy import Expects
from holdfast.api.trainingjob import policy_of, read_trainingjob

GOOD = "model: {layers: 2}\nexpects: {stepSeconds: 2.5, memoryRate: 2.0e+12}\n"


def job(text: str) -> dict[str, object]:
    return {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "gpt", "annotations": {PLAN_ANNOTATION: text}},
        "spec": {"entrypoint": ["train.py"]},
    }


def test_what_the_plan_counts_on_is_in_the_policy() -> None:
    assert policy_of(read_trainingjob(job(GOOD))).expects == Expects(2.5, 2e12)
    bare = job(GOOD)
    bare["metadata"] = {"name": "gpt"}
    assert policy_of(read_trainingjob(bare)).expects is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "3",
        "[1]",
        "model: 3",
        "a: {b",
        "model: {}",
        "expects: {stepSeconds: 0, memoryRate: 1}",
        "expects: {stepSeconds: .nan, memoryRate: 1}",
        "expects: {stepSeconds: .inf, memoryRate: 1}",
        "expects: {stepSeconds: 1, memoryRate: -1}",
        "expects: {stepSeconds: 1, memoryRate: 1, colour: red}",
        "expects: {stepSeconds: soon, memoryRate: 1}",
        "!!python/object/apply:os.system [ls]",
        "x" * 70_000,
        "[" * 5000,
        "expects: {stepSeconds: !!bool soon, memoryRate: 1}",
        "expects: {stepSeconds: !!timestamp soon, memoryRate: 1}",
        "expects: {stepSeconds: !!int '', memoryRate: 1}",
        "expects: {stepSeconds: 2024-13-45, memoryRate: 1}",
        "a: &a {k: 1}\nexpects: {<<: *a, stepSeconds: 1, memoryRate: 1}",
        "a: " + "{a: " * 9 + "1" + "}" * 10,
    ],
)
def test_a_plan_that_cannot_be_read_is_refused_with_the_job(text: str) -> None:
    with pytest.raises(InvalidSpec, match=r"annotations\[holdfast.dev/plan\].*holdfast plan --write"):
        read_trainingjob(job(text))


def test_few_characters_that_refer_to_one_another_do_not_become_many_values() -> None:
    """Read, this would be 2 x 8^12 pairs."""
    rows = [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 8)}]}}" for n in range(1, 13)]
    with pytest.raises(InvalidSpec, match="neither references nor tags"):
        read_trainingjob(job("\n".join(["a0: &a0 {k: v, l: w}", *rows])))


def test_a_job_without_a_plan_has_none() -> None:
    assert carried({}) is None
    with pytest.raises(InvalidInput, match="annotations"):
        carried({PLAN_ANNOTATION: 3})
