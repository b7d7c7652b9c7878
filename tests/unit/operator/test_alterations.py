"""What the API server made of a pod, beside what it was asked for."""

from typing import Any

import pytest

from holdfast.operator.decide.alterations import TOLD_MAX, Alterations, alterations

MOUNTS = [
    {"name": "data", "mountPath": "/in", "readOnly": True},
    {"name": "data", "mountPath": "/out", "subPath": "o"},
]
TOKEN = {"name": "default-token", "mountPath": "/token", "readOnly": True}


def between(asked: Any, taken: Any) -> Alterations:
    """Of two pods that differ in this field of their spec."""
    return alterations({"metadata": {}, "spec": {"f": asked}}, {"metadata": {}, "spec": {"f": taken}})


@pytest.mark.parametrize(
    ("asked", "taken"),
    [
        ({"a": 1}, {"a": 1, "added": 2}),
        ({"empty": [], "off": False, "none": None, "text": ""}, {}),
        ({"empty": "", "zero": 0}, {"empty": "Always"}),
        ({"q": "1024Mi", "r": 4, "s": "0.5"}, {"q": "1Gi", "r": "4", "s": "500m"}),
        ([{"name": "x"}], [{"name": "sidecar"}, {"name": "x"}]),
        ([{"key": "x", "v": 1}], [{"key": "added", "z": 1}, {"key": "x", "v": 1}, {"key": "last"}]),
        (MOUNTS, [TOKEN, *MOUNTS]),
        (
            [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}],
            [{"name": "A", "value": "1"}] * 1 + [{"name": "A", "value": "2"}],
        ),
        ([{"serviceAccountToken": {"path": "t"}}], [{"serviceAccountToken": {"path": "t"}}, {"configMap": {}}]),
        (["--a", "--b"], ["--first", "--a", "--b"]),
    ],
)
def test_what_is_added_empty_or_written_another_way_is_no_difference(asked: Any, taken: Any) -> None:
    assert between(asked, taken) == Alterations()


@pytest.mark.parametrize(
    ("asked", "taken", "dropped"),
    [
        ([{"name": "gpu"}], None, ["spec.f"]),
        ({"b": {"c": [{"name": "x", "d": 1}]}}, {"b": {"c": [{"name": "x"}]}}, ["spec.f.b.c[0].d"]),
        ([{"name": "x", "y": 1}], [{"name": "sidecar"}, {"name": "x"}], ["spec.f[0].y"]),
        ([{"key": "x"}, {"key": "y", "v": 1}], [{"key": "y", "v": 1}], ["spec.f[0]"]),
        (MOUNTS, [TOKEN, MOUNTS[1]], ["spec.f[0]"]),
        ([{"name": "A", "value": "1"}, {"name": "A", "value": "1"}], [{"name": "A", "value": "1"}], ["spec.f[1]"]),
        (["--a", "--b"], ["--b"], ["spec.f[0]"]),
        ({"hostPort": 0, "on": True}, {}, ["spec.f.on"]),
    ],
)
def test_what_is_gone_is_named_by_its_place(asked: Any, taken: Any, dropped: list[str]) -> None:
    found = between(asked, taken)
    assert list(found.dropped) == dropped
    assert not found.rewritten


@pytest.mark.parametrize(
    ("asked", "taken", "says"),
    [
        ({"image": "x"}, {"image": "mirror/x"}, "spec.f.image ('mirror/x' in place of 'x')"),
        ({"cpu": "4"}, {"cpu": "2"}, "spec.f.cpu ('2' in place of '4')"),
        ({"hostPID": True}, {"hostPID": False}, "spec.f.hostPID (False in place of True)"),
        ([{"key": "x", "effect": "NoSchedule"}], [{"key": "x", "effect": "NoExecute"}], "spec.f[0].effect ("),
        ({"a": [1]}, {"a": "b"}, "spec.f.a ('b' in place of [1])"),
    ],
)
def test_what_has_another_value_is_told_with_both(asked: Any, taken: Any, says: str) -> None:
    (told,) = between(asked, taken).rewritten
    assert told.startswith(says)


def test_labels_and_annotations_are_of_the_pod_as_well() -> None:
    asked = {"metadata": {"name": "a-trial", "labels": {"l": "1"}, "annotations": {"n": "2"}}, "spec": {}}
    found = alterations(asked, {"metadata": {"name": "other", "labels": {}, "annotations": {"n": "3"}}})
    assert found == Alterations(("metadata.labels.l",), ("metadata.annotations.n ('3' in place of '2')",))


def test_few_are_told_and_how_many_more() -> None:
    names = tuple(f"spec.f{place}" for place in range(TOLD_MAX + 3))
    assert Alterations(names).says().endswith(f"spec.f{TOLD_MAX - 1} and 3 more")
    assert Alterations().says() == ""
    assert Alterations(("a",), ("b (1 in place of 2)",)).says() == "dropped: a; rewritten: b (1 in place of 2)"
    (told,) = between({"a": "x" * 5000}, {"a": "y" * 5000}).rewritten
    assert len(told) < 200
