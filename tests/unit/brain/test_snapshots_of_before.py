"""A snapshot that an earlier version wrote is read by this one, and says what it said.

Where it could not be read, a start would apply the whole journal again: minutes in an old job, with the fleet
waiting. The files under snapshots/ were written by versions of before and are never written anew. A change that
they do not survive needs a way to read them. `python tests/unit/brain/test_snapshots_of_before.py NAME` adds one.
"""

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from story import JOB, policy
from test_any_order import EVENTS, PAUSES_S, Chance

from holdfast.api.event import JobSubmitted
from holdfast.watchdog.brain import advance, initial
from holdfast.watchdog.brain.state import JobState

SNAPSHOTS = Path(__file__).parent / "snapshots"
FILES = sorted(SNAPSHOTS.glob("*.json"))


def lost(before: Any, now: Any, path: str = "") -> list[str]:
    """What was said before and is not said now. What is new, with its default, is no loss."""
    if isinstance(before, dict) and isinstance(now, dict):
        gone = [f"{path}.{name}" for name in before if name not in now]
        return gone + [
            each for name in before if name in now for each in lost(before[name], now[name], f"{path}.{name}")
        ]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        return [
            each
            for at, (old, new) in enumerate(zip(before, now, strict=True))
            for each in lost(old, new, f"{path}[{at}]")
        ]
    return [] if before == now else [f"{path}: {before!r} became {now!r}"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_snapshot_of_before_is_read_and_says_what_it_said(file: Path) -> None:
    for before in msgspec.json.decode(file.read_bytes()):
        state = msgspec.msgpack.decode(msgspec.msgpack.encode(before), type=JobState, strict=False)
        assert lost(before, msgspec.json.decode(msgspec.json.encode(state))) == []


def test_there_is_one_and_it_holds_what_states_are_made_of() -> None:
    states = [state for file in FILES for state in msgspec.json.decode(file.read_bytes())]
    told = {name for state in states for name, value in state.items() if value not in (None, [], {}, "", 0, False)}
    assert told >= {
        "policy",
        "members",
        "round",
        "incidents",
        "checkpoints",
        "trials",
        "ledger",
        "avoided",
        "recovery",
    }


def lives(seeds: range) -> list[JobState]:
    """How jobs of a few random lives stand at their end."""
    states = []
    for seed in seeds:
        chance, now = Chance(seed), 1000.0
        state = advance(initial(JOB), JobSubmitted(policy(**chance.fields)), now).state
        for _ in range(EVENTS):
            now += chance.draw.choice(PAUSES_S)
            state = advance(state, chance.event(state, now), now).state
        states.append(state)
    return states


if __name__ == "__main__":
    written = msgspec.json.format(msgspec.json.encode(lives(range(8))), indent=-1)
    (SNAPSHOTS / f"{sys.argv[1]}.json").write_bytes(written + b"\n")
