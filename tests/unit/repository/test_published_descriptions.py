"""What is published of docstrings is the same whichever Python publishes it: 3.13 strips their indents, and older
versions do not.
"""

import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.api.trainingjob import TrainingJob
from holdfast.console.serving.application import make_application
from holdfast.operator import crd

GOLDEN = Path(__file__).parents[1] / "api" / "golden"

PUBLISHED: dict[str, Callable[[], Any]] = {
    "the API's definitions": crd.definitions,
    "the console's OpenAPI": lambda: make_application(None, None).openapi(),  # type: ignore[arg-type]
    "the job's schema": TrainingJob.model_json_schema,
    **{path.stem: lambda path=path: json.loads(path.read_text()) for path in sorted(GOLDEN.glob("wire-*.json"))},
}


def _descriptions(document: Any) -> Iterator[str]:
    match document:
        case dict():
            if isinstance(told := document.get("description"), str):
                yield told
            for each in document.values():
                yield from _descriptions(each)
        case list() | tuple():
            for each in document:
                yield from _descriptions(each)


@pytest.mark.parametrize("name", PUBLISHED)
def test_no_description_has_the_indents_of_its_docstring(name: str) -> None:
    told = list(_descriptions(PUBLISHED[name]()))
    assert told
    assert [each for each in told if inspect.cleandoc(each) != each] == []
