from pathlib import Path

import pytest

from holdfast.api.errors import InvalidInput
from holdfast.api.round import Endpoint, Restore, Tier
from holdfast.trainer.host import Mode, surroundings_of

TORCHRUN = {
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node-0",
    "MASTER_PORT": "29500",
}


def test_an_empty_environment_is_a_plain_run_of_one_rank_that_resumes() -> None:
    found = surroundings_of({})
    assert found.mode is Mode.PLAIN
    assert found.run_directory is None
    part = found.only_assignment()
    assert (part.round, part.rank, part.world_size) == (0, 0, 1)
    assert part.restore == Restore(tier=Tier.CHECKPOINT, step=None)


def test_the_variables_of_torchrun_are_one_round() -> None:
    found = surroundings_of({**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_RUN_ID": "job"})
    assert found.mode is Mode.TORCHRUN
    part = found.only_assignment()
    assert (part.rank, part.local_rank, part.world_size, part.local_size) == (3, 1, 4, 2)
    assert part.endpoint == Endpoint("node-0", 29500)
    assert (part.round, part.job) == (2, "job")


def test_a_control_socket_wins_over_the_variables_of_torchrun() -> None:
    found = surroundings_of({**TORCHRUN, "HOLDFAST_CONTROL": "/run/control", "HOLDFAST_RUN_DIR": "/run"})
    assert found.mode is Mode.ATTACHED
    assert found.control_path == "/run/control"
    assert found.run_directory == Path("/run")


@pytest.mark.parametrize("missing", ["WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"])
def test_a_rank_without_its_companions_is_refused_by_name(missing: str) -> None:
    environment = {name: value for name, value in TORCHRUN.items() if name != missing}
    with pytest.raises(InvalidInput, match=missing):
        surroundings_of(environment)


def test_a_rank_that_is_no_number_is_refused() -> None:
    with pytest.raises(InvalidInput, match="RANK: 'three'"):
        surroundings_of({**TORCHRUN, "RANK": "three"})


def test_only_a_drill_makes_a_process_corruptible() -> None:
    attached = {"HOLDFAST_CONTROL": "/run/control", "HOLDFAST_RUN_DIR": "/run"}
    assert surroundings_of(attached).corruptible is None
    assert surroundings_of({**attached, "HOLDFAST_CORRUPTIBLE": "1"}).corruptible == Path("/run")
