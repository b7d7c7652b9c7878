"""Where a node is, by its labels."""

import pytest

from holdfast.api.errors import InvalidInput
from holdfast.api.place import PLACES_MAX, Place
from holdfast.operator.decide.places import places_of, read_labels


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        ({}, []),
        ({"kubernetes.io/hostname": "a"}, []),
        (
            {"network.topology.nvidia.com/leaf": "s1", "network.topology.nvidia.com/spine": "s9"},
            ["spine s9", "switch s1"],
        ),
        ({"fabric.topograph.run/tier-0": "s1"}, ["switch s1"]),
        ({"topology.k8s.aws/network-node-layer-3": "nn-1"}, ["switch nn-1"]),
        ({"example.com/rack": "r7", "example.com/row": "b"}, ["rack r7"]),
        ({"own.example/a": "r1", "own.example/b": "r2"}, ["rail r1", "rail r2"]),
    ],
)
def test_labels_say_where_a_node_is(labels: dict[str, str], found: list[str]) -> None:
    told = (("own.example/a", "rail"), ("own.example/b", "rail"))
    assert [str(each) for each in places_of(labels, ("example.com/rack",), told)] == found


def test_what_the_installation_says_of_a_label_comes_first() -> None:
    labels = {"network.topology.nvidia.com/leaf": "s1"}
    assert places_of(labels, (), (("network.topology.nvidia.com/leaf", "rail"),)) == (Place("rail", "s1"),)


def test_a_node_has_so_many_places_and_no_more() -> None:
    told = tuple((f"l{n}", "rail") for n in range(PLACES_MAX + 5))
    assert len(places_of({label: label for label, _ in told}, (), told)) == PLACES_MAX


def test_labels_are_read_from_words() -> None:
    assert read_labels("") == ()
    assert read_labels("a.b/c=rack, d=nvlink-domain") == (("a.b/c", "rack"), ("d", "nvlink-domain"))
    for bad in ("rack", "=rack", "a=", "a=x y"):
        with pytest.raises(InvalidInput, match="--place-labels"):
            read_labels(bad)
