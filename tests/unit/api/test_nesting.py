"""Documents nested without end, as a tenant may store them."""

import json
import random
from typing import Any

import msgspec
import pytest

from holdfast.api.nesting import DEPTH_MAX, TOO_DEEP, read, shallow


class Named(msgspec.Struct):
    name: str


class Job(msgspec.Struct):
    metadata: Named


WORD = json.loads(TOO_DEEP)
TEXTS = ("", "a", '"', "\\", '\\"', "{", "}]", '{"a":[', "é\n", "\u2028")


def cut(value: Any, depth: int = 1) -> Any:
    """What `shallow` should leave."""
    if not isinstance(value, dict | list):
        return value
    if depth > DEPTH_MAX:
        return WORD
    if isinstance(value, list):
        return [cut(each, depth + 1) for each in value]
    return {key: cut(each, depth + 1) for key, each in value.items()}


def document(chance: random.Random, depth: int) -> Any:
    """Mostly one chain down, with something beside it."""
    if depth == 0:
        return chance.choice([1, -2.5, None, True, *TEXTS])
    below = document(chance, depth - 1)
    beside = document(chance, chance.randrange(3)) if depth > 3 else 0
    return [beside, below, beside] if chance.random() < 0.5 else {chance.choice(TEXTS): below, "beside": beside}


@pytest.mark.parametrize("seed", range(40))
def test_what_is_deeper_than_the_limit_is_a_word_and_all_else_stays(seed: int) -> None:
    chance = random.Random(seed)
    made = document(chance, DEPTH_MAX + chance.randrange(-4, 20))
    for written in (json.dumps(made), json.dumps(made, ensure_ascii=False, indent=1)):
        assert json.loads(shallow(written.encode())) == cut(made)


def test_a_job_is_read_by_its_name_however_deep_its_template_is() -> None:
    deep = b'{"a":' * 10_000 + b"[]" + b"}" * 10_000
    content = b'{"metadata":{"managedFields":[%b],"name":"deep"},"spec":{"template":%b}}' % (deep, deep)
    with pytest.raises(RecursionError):
        msgspec.json.decode(content, type=Job)
    assert read(content, Job).metadata.name == "deep"
