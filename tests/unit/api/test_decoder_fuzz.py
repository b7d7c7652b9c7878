"""The fuzzer's first cases, from fixed seeds; `make fuzz` goes on from there for an hour."""

import pytest
from decoder_fuzzer import TARGETS, fuzz


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", TARGETS)
def test_a_damaged_message_is_another_message_or_the_documented_error(name: str, seed: int) -> None:
    refused = fuzz(name, seed, 60 if name in ("job file", "grants") else 600)
    assert bool(refused) == bool(TARGETS[name].raises)
