"""How far a gradient norm may go, learned along the way."""

import math
import random
from pathlib import Path

import msgspec
import pytest
import torch
from trainer_builders import assignment

from holdfast.api import rankrecord
from holdfast.api.control import record_file_name
from holdfast.api.policy import SpikeLimits
from holdfast.checkpoint import Checkpointer, Standalone
from holdfast.trainer import SpikeGuard
from holdfast.trainer.record import open_record
from holdfast.trainer.spikeguard import SKIPS_IN_A_ROW_MAX, WARM_UP_STEPS
from holdfast.trainer.values import Skips


def learned(mean: float = 3.0, deviation: float = 0.3, steps: int = 400, **limits: float) -> SpikeGuard:
    guard, drawn = SpikeGuard(**limits), random.Random(1)
    for _ in range(steps):
        norm = drawn.gauss(mean, deviation)
        assert not guard.is_spike(norm)
        guard.learn(norm, skipped=False)
    return guard


def test_it_clips_at_the_mean_and_four_standard_deviations_and_never_below_the_least() -> None:
    assert learned(3.0, 0.3).max_norm == pytest.approx(3.0 + 4 * 0.3, rel=0.1)
    assert learned(0.1, 0.01).max_norm == 1.0
    assert learned(0.1, 0.01, least=0.05).max_norm == pytest.approx(0.14, rel=0.1)


def test_until_it_is_known_what_is_usual_it_clips_at_the_least_and_leaves_nothing_out() -> None:
    guard = learned(steps=WARM_UP_STEPS - 1)
    assert (guard.max_norm, guard.is_spike(1e9)) == (1.0, False)
    guard.learn(3.0, skipped=False)
    assert guard.max_norm > 1.0
    assert guard.is_spike(1e9)


def test_twenty_times_the_mean_is_left_out_and_teaches_nothing() -> None:
    guard = learned(3.0, 0.3)
    before = guard.state_dict()
    assert (guard.is_spike(55.0), guard.is_spike(70.0)) == (False, True)
    guard.learn(70.0, skipped=True)
    assert guard.state_dict() == {**before, "row": 1}


def test_one_that_is_clipped_is_learned_as_it_was_clipped() -> None:
    guard = learned(3.0, 0.3)
    limit = guard.max_norm
    guard.learn(50.0, skipped=False)
    assert guard.max_norm < 1.3 * limit


def test_what_comes_again_and_again_is_no_spike() -> None:
    guard = learned(3.0, 0.3)
    for _ in range(SKIPS_IN_A_ROW_MAX):
        assert guard.is_spike(90.0)
        guard.learn(90.0, skipped=True)
    assert not guard.is_spike(90.0)


def test_nothing_is_left_out_where_nothing_is_to_be() -> None:
    assert not learned(skip_above=math.inf).is_spike(1e30)


@pytest.mark.parametrize("limits", [{"skip_above": 0.0}, {"deviations": -1.0}, {"least": math.nan}])
def test_a_limit_that_is_none_is_refused_by_name(limits: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(limits))}: .* is not accepted; write a number above 0"):
        SpikeGuard(**limits)


def test_a_step_with_a_spike_is_left_out_and_is_no_fault(tmp_path: Path) -> None:
    record = open_record(tmp_path, 0)
    record.begin(assignment(round=7, rank=0, world_size=1))
    skips, guard = Skips(record), learned()
    assert not skips.agree(1, 1.0, torch.tensor(3.1), guard)
    assert skips.agree(2, 1.0, torch.tensor(90.0), guard)
    assert skips.agree(3, math.nan, torch.tensor(90.0), guard), "not finite, which is another matter"
    told = rankrecord.unpack_health((tmp_path / record_file_name(0)).read_bytes())
    assert (2 in skips, told.skipped, told.skipped_count, told.count) == (True, 3, 1, 0)
    assert guard.state_dict()["row"] == 1


def test_a_run_that_goes_on_from_a_checkpoint_decides_as_it_did_before(tmp_path: Path) -> None:
    def saves(guard: SpikeGuard) -> Checkpointer:
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        extra = {"spikes": guard}
        return Checkpointer(Standalone(), model=model, optimizer=optimizer, extra=extra, uri=tmp_path.as_uri())

    before = learned()
    list(saves(before).steps([0], until=1))
    after = SpikeGuard()
    list(saves(after).steps([0, 0], until=1))
    assert after.state_dict() == before.state_dict()
    assert after.max_norm == before.max_norm


def test_what_the_job_says_comes_before_what_the_script_says() -> None:
    part = msgspec.structs.replace(assignment(), spikes=SpikeLimits(skip_above=5.0))
    guard = SpikeGuard(part, skip_above=50.0, deviations=1.0)
    for norm in [2.9, 3.1] * 100:
        guard.learn(norm, skipped=False)
    assert (guard.is_spike(14.0), guard.is_spike(16.0)) == (False, True)
    assert guard.max_norm == pytest.approx(3.1, rel=0.01)
    assert SpikeGuard(assignment(), skip_above=50.0).is_spike(1e9) is False
    wide = SpikeGuard(msgspec.structs.replace(part, spikes=SpikeLimits(deviations=10.0)))
    for norm in [2.9, 3.1] * 100:
        wide.learn(norm, skipped=False)
    assert wide.max_norm == pytest.approx(4.0, rel=0.01)
    assert not wide.is_spike(3.0 * 19)
    assert wide.is_spike(3.0 * 21)
