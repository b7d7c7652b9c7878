"""Whatever the bytes are, they are read or refused as damaged."""

import pytest
from stored_bytes import FUZZERS

from holdfast.api.errors import Damaged, Malformed
from holdfast.checkpoint.format import index, manifest
from holdfast.checkpoint.memory import record

INPUTS = 300


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", FUZZERS)
def test_no_bytes_raise_anything_but_what_is_documented(name: str, seed: int) -> None:
    refused = FUZZERS[name](seed, INPUTS)
    assert INPUTS // 2 < refused <= INPUTS


@pytest.mark.parametrize(
    "words", [b"", b"\xff", b"\xa1\xff", b"\x8d\xa5owner\xa1\xff", b"[" * 100_000, b"\x91" * 100_000]
)
def test_what_once_raised_something_else_is_damage(words: bytes) -> None:
    for decode in (record.decode, index.decode, manifest.decode):
        with pytest.raises((Damaged, Malformed)):
            decode(words)
