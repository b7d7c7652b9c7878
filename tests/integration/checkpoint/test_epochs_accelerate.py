"""A loop of Accelerate's that is cut in a later epoch goes on with the samples of that epoch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import patient

from holdfast.api.errors import InvalidInput
from holdfast.integrations.accelerate import Batches

SCRIPT = Path(__file__).with_name("accelerate_epochs.py")


@pytest.mark.timeout(patient(120.0))
def test_a_loop_that_is_cut_in_a_later_epoch_goes_on_in_its_order(tmp_path: Path) -> None:
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(SCRIPT), str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    ended = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "DIFFERS" not in ended.stdout


class Lonely:
    """An Accelerator that sees two processes where there is one."""

    num_processes = 2


def test_a_world_that_the_accelerator_sees_otherwise_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"accelerator.num_processes.*the round has 1 ranks"):
        Batches(Lonely(), [], folder=tmp_path)
