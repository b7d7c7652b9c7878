"""A loop of Accelerate's that is cut in a later epoch goes on with the samples of that epoch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from patience import patient
from torch.utils.data import DataLoader

from holdfast.api.errors import InvalidInput
from holdfast.integrations.accelerate import Batches
from holdfast.integrations.sampleorder import SampleOrder

SCRIPT = Path(__file__).with_name("accelerate_epochs.py")


@pytest.mark.timeout(patient(120.0))
def test_a_loop_that_is_cut_in_a_later_epoch_goes_on_in_its_order(tmp_path: Path) -> None:
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(SCRIPT), str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    ended = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "DIFFERS" not in ended.stdout


@pytest.mark.timeout(patient(60.0))
def test_a_loader_that_keeps_its_workers_has_the_order_of_a_later_epoch_again() -> None:
    def loader() -> "DataLoader[int]":
        return DataLoader(range(32), 4, shuffle=True, num_workers=1, persistent_workers=True)  # type: ignore[arg-type]

    def epoch(of: "DataLoader[int]", seed: int) -> list[int]:
        torch.manual_seed(seed)
        return [int(number) for batch in of for number in batch]

    first, other = loader(), loader()
    epoch(first, 3)
    torch.manual_seed(4)
    kept = SampleOrder(first).kept()
    expected, after = epoch(first, 4), epoch(first, 5)
    order = SampleOrder(other)
    order.again(kept)
    assert epoch(other, 9) == expected
    order.ended()
    assert epoch(other, 5) == after


class Lonely:
    """An Accelerator that sees two processes where there is one."""

    num_processes = 2


def test_a_world_that_the_accelerator_sees_otherwise_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"accelerator.num_processes.*the round has 1 ranks"):
        Batches(Lonely(), [], folder=tmp_path)
