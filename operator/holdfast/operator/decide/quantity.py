"""Quantities of Kubernetes as numbers: the same amount may be written in many ways. Pure."""

import re
from decimal import Decimal
from typing import Final

_QUANTITY: Final = re.compile(
    r"([+-]?[0-9]+(?:\.[0-9]*)?|[+-]?\.[0-9]+)(?:([eE][+-]?[0-9]{1,2})|([numkMGTPE]|[KMGTPE]i))?"
)
_SUFFIXES: Final = {
    "n": Decimal(10) ** -9,
    "u": Decimal(10) ** -6,
    "m": Decimal(10) ** -3,
    **{suffix: Decimal(1000) ** power for power, suffix in enumerate("kMGTPE", 1)},
    **{f"{suffix}i": Decimal(1024) ** power for power, suffix in enumerate("KMGTPE", 1)},
}
_LENGTH_MAX: Final = 64


def quantity_of(given: object) -> Decimal | None:
    """The amount that is written as a text or a whole number, None where that is no quantity.

    Source: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
    """
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        return None
    text = str(given)
    found = _QUANTITY.fullmatch(text) if len(text) <= _LENGTH_MAX else None
    if found is None:
        return None
    number, exponent, suffix = found.groups()
    return Decimal(f"{number}{exponent or ''}") * _SUFFIXES.get(suffix, Decimal(1))
