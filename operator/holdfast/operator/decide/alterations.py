"""How a pod that the API server took differs from what it was asked for. Pure.

A feature gate that is off makes the server drop a field without a word, and so may an admission policy or webhook,
which may also write another value. No field is misspelt there: strict validation refuses that. What is added, what
is empty, and a quantity that is written another way are no difference.
Source: https://kubernetes.io/docs/reference/using-api/deprecation-policy/ (feature gates drop their fields),
https://kubernetes.io/docs/reference/access-authn-authz/mutating-admission-policy/
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.operator.decide.quantity import quantity_of

TOLD_MAX: Final = 10
SHOWN_MAX: Final = 60
WHO: Final = "a feature gate that is off, an admission policy or a webhook does that"
# By which entries of a list are the same one, the first that an entry has. A mount's name is its volume's.
# Source: https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/ (patch merge keys)
_KEYS: Final = ("mountPath", "devicePath", "containerPort", "name", "key", "topologyKey", "ip")


class Alterations(msgspec.Struct, frozen=True):
    """Fields of the pod that are gone, and those that have another value, each in words."""

    dropped: tuple[str, ...] = ()
    rewritten: tuple[str, ...] = ()

    def says(self) -> str:
        """Empty when there are none."""
        parts = (("dropped", self.dropped), ("rewritten", self.rewritten))
        return "; ".join(f"{what}: {_listed(fields)}" for what, fields in parts if fields)


def alterations(asked: Mapping[str, Any], taken: Mapping[str, Any]) -> Alterations:
    """Of a whole pod: its labels, its annotations and its spec."""
    found = [
        *_differences(asked.get("spec"), taken.get("spec"), "spec"),
        *(
            each
            for part in ("labels", "annotations")
            for each in _differences(
                asked["metadata"].get(part), (taken.get("metadata") or {}).get(part), f"metadata.{part}"
            )
        ),
    ]
    return Alterations(
        dropped=tuple(path for path, other in found if other is None),
        rewritten=tuple(f"{path} ({other})" for path, other in found if other is not None),
    )


def _listed(fields: Sequence[str]) -> str:
    more = f" and {len(fields) - TOLD_MAX} more" if len(fields) > TOLD_MAX else ""
    return ", ".join(fields[:TOLD_MAX]) + more


Difference = tuple[str, str | None]
"""The path of a field, and what it is in place of what; None where it is gone."""


def _differences(asked: Any, taken: Any, path: str) -> Iterator[Difference]:
    if not asked and not isinstance(asked, int | float):
        return  # empty: it means nothing, or the default
    match asked, taken:
        case _, None:
            if asked:
                yield path, None
        case dict(), dict():
            for key, value in asked.items():
                yield from _differences(value, taken.get(key), f"{path}.{key}")
        case list(), list():
            yield from _of_lists(asked, taken, path)
        case _ if asked != taken and (quantity_of(asked) is None or quantity_of(asked) != quantity_of(taken)):
            yield path, f"{_shown(taken)} in place of {_shown(asked)}"


def _of_lists(asked: list[Any], taken: list[Any], path: str) -> Iterator[Difference]:
    """Entries may be added anywhere; those of one key stay in their order."""
    there: dict[tuple[str, Any], list[Any]] = {}
    for each in taken:
        there.setdefault(_key_of(each), []).append(each)
    met: Counter[tuple[str, Any]] = Counter()
    for place, each in enumerate(asked):
        key = _key_of(each)
        same = there.get(key, ())
        yield from _differences(each, same[met[key]] if met[key] < len(same) else None, f"{path}[{place}]")
        met[key] += 1


def _key_of(entry: Any) -> tuple[str, Any]:
    if not isinstance(entry, dict):
        return "", repr(entry)
    return next(((key, repr(entry[key])) for key in _KEYS if entry.get(key)), ("", None))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}..."
