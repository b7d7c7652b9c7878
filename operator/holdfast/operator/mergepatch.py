"""The merge patch that makes one document of another. Source: https://www.rfc-editor.org/rfc/rfc7386"""

from collections.abc import Mapping
from typing import Any


def merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """What to change in `old` to get `new`; empty when they are the same. None in `new` means "not there"."""
    patch: dict[str, Any] = {key: None for key in old if new.get(key) is None and old[key] is not None}
    for key, value in new.items():
        before = old.get(key)
        if value is None or value == before:
            continue
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            if inner := merge_patch(before, value):
                patch[key] = inner
        else:
            patch[key] = value
    return patch


def without_nulls(value: Any) -> Any:
    """The document as the API server keeps it: what is null is not there. Merge patches cannot say null."""
    if isinstance(value, Mapping):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    if isinstance(value, list | tuple):
        return [without_nulls(each) for each in value]
    return value
