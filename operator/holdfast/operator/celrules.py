"""Rules in CEL that the API server holds an object to when it is applied, in the words of who reads it later.

A rule that an object broke already, for it is older than the rule, holds up no change elsewhere in it: the server
judges only what changed. What is said is the same for every object: by the server's estimate a number in it would
cost a hundred times what all rules together may.
Source: https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#validation-rules
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

RULES: Final = "x-kubernetes-validations"


@dataclass(frozen=True, slots=True)
class Rule:
    """`holds` is CEL about `self`; `field` is which part of it is wrong where it does not, empty for the whole.

    `old`: the rule knows `oldSelf`, an optional that is empty when the object is made.
    """

    holds: str
    fix: str
    field: str = ""
    old: bool = False


def rules(*given: Rule) -> list[dict[str, Any]]:
    """As the definition has them."""
    return [dict(_entries(each)) for each in given]


def _entries(rule: Rule) -> Iterator[tuple[str, Any]]:
    yield "rule", rule.holds
    if rule.field:
        yield "fieldPath", rule.field
    if rule.old:
        yield "optionalOldSelf", True
    yield "message", rule.fix


def accessor(name: str) -> str:
    """A field of this name, as CEL writes it after a dot."""
    return name.replace(".", "__dot__").replace("/", "__slash__").replace("-", "__dash__")


def milliseconds(text: str) -> str:
    """CEL for the milliseconds of a duration such as 1h30m; CEL's own durations know no days."""
    sizes = {"d": 86_400_000.0, "h": 3_600_000.0, "ms": 1.0, "m": 60_000.0, "s": 1000.0}
    total = "0.0"
    for unit, size in reversed(sizes.items()):
        number = "double(p.find('[0-9.]+'))"
        total = f"p.matches('[0-9.]+{unit}$') ? {number} * {size} : ({total})"
    return f"{text}.findAll('[0-9.]+[a-z]+').map(p, {total}).sum()"
