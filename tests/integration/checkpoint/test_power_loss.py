"""Wherever the power goes off, the newest checkpoint that was told of is there afterwards, bit by bit."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
from checkpoint_solo import Solo
from power_loss import Disk, Kept, any_of_it, beginning, everything, nothing
from recorder import Call, Recorder

from holdfast.api.round import Restore, Tier

SEEDS = 2


@dataclass
class History:
    """What a process did, and the states it told of: step and weights, in the order of their commits."""

    calls: Sequence[Call]
    told: list[tuple[int, list[float]]] = field(default_factory=list)

    def train(self, solo: Solo, recorder: Recorder, steps: range) -> None:
        for step in steps:
            self.told.append((step, solo.train(until=step).weights))
            recorder.say(str(len(self.told)))


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    """Saves that push old ones out, and a second round that goes back to step 2 and replaces step 3."""
    root = tmp_path_factory.mktemp("recorded") / "root"
    with pytest.MonkeyPatch.context() as patch:
        recorder = Recorder(root).watch(patch)
        history = History(recorder.calls)
        history.train(Solo(root, round=1, keep=2), recorder, range(1, 4))
        back = Restore(tier=Tier.CHECKPOINT, step=2, learning_rate_scale=0.5)
        history.train(Solo(root, round=2, keep=2, restore=back), recorder, range(3, 4))
    assert history.told[2] != history.told[3]
    targets = " ".join(call.target for call in history.calls)
    assert ".gone-" in targets
    assert ".old-" in targets
    return history


def losses(calls: Sequence[Call], kept: Kept, root: Path, *, seeds: int) -> Iterator[tuple[int, int, Path]]:
    """After each call: the number of states told of, and a folder as it may be found then."""
    disk, told = Disk(), 0
    for number, call in enumerate(calls):
        disk.do(call)
        told = int(call.name) if call.kind == "said" else told
        for seed in range(seeds):
            left = root / f"{number}-{seed}"
            disk.after_power_loss(kept, random.Random(seed), left)
            yield number, told, left


def find_loss(history: History, calls: Sequence[Call], kept: Kept, root: Path, *, seeds: int = 1) -> str | None:
    """What the next round finds wrong after any of the calls; None: nothing."""
    for number, told, left in losses(calls, kept, root, seeds=seeds):
        try:
            solo = Solo(left, round=3, every_steps=None).train(until=0)
        except Exception as error:
            return f"after {calls[number]}: {error!r}"
        step, skipped = solo.run.restores[0][:2]
        if skipped:
            return f"after {calls[number]}: {skipped}"
        states = [(None, [0.5] * 4), *history.told]
        if (step, solo.weights) not in states[told:]:
            return f"after {calls[number]}: {told} states were told of, step {step} was found"
    return None


@pytest.mark.parametrize(
    ("kept", "seeds"),
    [(everything, 1), (nothing, 1), (beginning, SEEDS), (any_of_it, SEEDS)],
    ids=["a kill", "nothing unsynced is left", "the order is kept", "any of it is left"],
)
def test_what_was_told_of_is_there_wherever_the_power_goes_off(
    kept: Kept, seeds: int, history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Recorder(tmp_path).watch(monkeypatch)  # Nothing is really synced, which is slow.
    assert find_loss(history, history.calls, kept, tmp_path, seeds=seeds) is None


def is_staged_folder(call: Call) -> bool:
    return ".tmp-" in call.name and "/" not in call.name


def syncs(name: str) -> Callable[[Call, Call], bool]:
    return lambda before, call: call.kind == "sync" and call.name.endswith(name)


MUTATIONS: dict[str, Callable[[Call, Call], bool]] = {
    "tensors": syncs("/__0_0.distcp"),
    "stock metadata": syncs("/.metadata"),
    "index": syncs("/index.json"),
    "manifest": syncs("/manifest.json"),
    "fence": syncs("fence.new"),
    "names in the folder": lambda before, call: call.kind == "sync" and is_staged_folder(call),
    "name of the folder": lambda before, call: call.kind == "sync" and is_staged_folder(before),
    "retired name": lambda before, call: call.kind == "sync" and ".gone-" in before.target,
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_every_sync_is_needed(
    mutation: str, history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Recorder(tmp_path).watch(monkeypatch)
    is_missing = MUTATIONS[mutation]
    calls = [
        call for before, call in pairwise([Call("said", "0"), *history.calls]) if not is_missing(before, call)
    ]
    assert len(calls) < len(history.calls)
    assert find_loss(history, calls, any_of_it, tmp_path, seeds=SEEDS) is not None
