"""A step that is left out, as a rank that is alone decides it; agreement among ranks is an integration test."""

import math
from pathlib import Path

import pytest
from trainer_builders import assignment

from holdfast.api import rankrecord
from holdfast.api.control import record_file_name
from holdfast.api.rankrecord import HealthZone, Odd
from holdfast.trainer.record import open_record
from holdfast.trainer.values import SKIPS_IN_A_ROW, Skips


@pytest.fixture
def skips(tmp_path: Path) -> Skips:
    record = open_record(tmp_path, 0)
    record.begin(assignment(round=7, rank=0, world_size=1))
    return Skips(record)


def zone(directory: Path) -> HealthZone:
    return rankrecord.unpack_health((directory / record_file_name(0)).read_bytes())


def test_a_finite_step_is_not_left_out(skips: Skips, tmp_path: Path) -> None:
    assert not skips.agree(3, 1.0, 2.0)
    assert not skips.agree(4, None, None)
    assert zone(tmp_path).skipped_count == 0


def test_a_step_that_is_left_out_is_told_with_what_it_was(skips: Skips, tmp_path: Path) -> None:
    assert skips.agree(3, 1.0, math.inf)
    told = zone(tmp_path)
    assert (told.skipped, told.skipped_count) == (3, 1)
    assert (told.skipped_loss, told.skipped_grad_norm) == (Odd.FINITE, Odd.INFINITE)
    assert (3 in skips, 4 in skips, told.count) == (True, False, 0)


def test_a_row_of_steps_left_out_is_a_fault_from_its_first(skips: Skips, tmp_path: Path) -> None:
    assert skips.agree(1, math.nan, None)
    assert not skips.agree(2, 1.0, None)
    for step in range(3, 3 + SKIPS_IN_A_ROW - 1):
        assert skips.agree(step, math.nan, None)
    assert zone(tmp_path).count == 0
    assert skips.agree(3 + SKIPS_IN_A_ROW, math.nan, None)
    assert (zone(tmp_path).step, zone(tmp_path).count, zone(tmp_path).loss) == (3, 1, Odd.NAN)
