"""Merge patches, and what cordoning changes of a node."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.cordon import CORDON_TAINT, CORDONED_BY, CordonedBy
from holdfast.api.written import without_nulls
from holdfast.operator.act.cordon import cordoned, uncordoned
from holdfast.operator.kube.writes import merge_patch

FOREIGN = {"key": "example/broken", "effect": "NoExecute", "timeAdded": "2026-11-21T03:00:00Z"}
BY = CordonedBy("ns/gpt", "XID 79", "inc-1", "2026-11-21T03:00:00Z")

LEAVES = st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)
DOCUMENTS = st.dictionaries(
    st.sampled_from("abc"),
    st.recursive(LEAVES, lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3), max_leaves=6),
    max_size=3,
)


def patched(document: Any, patch: Any) -> Any:
    """As RFC 7386 says."""
    if not isinstance(patch, dict):
        return patch
    result = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = patched(result.get(key), value)
    return result


@given(old=DOCUMENTS, new=DOCUMENTS)
def test_a_patch_makes_the_new_document_of_the_old_one(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert patched(old, merge_patch(old, new)) == new


@given(document=DOCUMENTS)
def test_the_same_document_needs_no_patch(document: dict[str, Any]) -> None:
    assert merge_patch(document, document) == {}


def test_null_means_not_there() -> None:
    assert merge_patch({"a": 1, "b": 2}, {"a": None, "b": 2, "c": None}) == {"a": None}
    assert without_nulls({"a": None, "b": [{"c": None, "d": ("x",)}]}) == {"b": [{"d": ["x"]}]}


def node(*taints: dict[str, Any], **annotations: str) -> dict[str, Any]:
    return {
        "metadata": {"name": "n1", "resourceVersion": "7", "annotations": annotations},
        "spec": {"taints": list(taints)} if taints else {},
    }


def test_cordoning_keeps_other_taints_as_they_were_read() -> None:
    patch = cordoned(node(FOREIGN), BY)
    assert patch is not None
    assert patch["spec"]["taints"][0] == FOREIGN
    assert patch["spec"]["taints"][1]["key"] == CORDON_TAINT
    assert patch["metadata"]["resourceVersion"] == "7"
    assert "inc-1" in patch["metadata"]["annotations"][CORDONED_BY]


def test_a_node_that_is_cordoned_is_left_alone() -> None:
    assert cordoned(node({"key": CORDON_TAINT, "effect": "NoSchedule"}), BY) is None


def test_uncordoning_takes_our_own_taint_and_note_away() -> None:
    held = node(FOREIGN, {"key": CORDON_TAINT, "effect": "NoSchedule"}, **{CORDONED_BY: '{"job": "ns/gpt"}'})
    patch = uncordoned(held, "ns/gpt")
    assert patch is not None
    assert patch["spec"]["taints"] == [FOREIGN]
    assert patch["metadata"]["annotations"] == {CORDONED_BY: None}


@pytest.mark.parametrize("note", [None, "not JSON", '{"job": "ns/other"}'])
def test_a_node_that_another_took_out_of_service_is_not_returned(note: str | None) -> None:
    annotations = {} if note is None else {CORDONED_BY: note}
    assert uncordoned(node({"key": CORDON_TAINT, "effect": "NoSchedule"}, **annotations), "ns/gpt") is None
