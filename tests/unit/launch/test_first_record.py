import os
from pathlib import Path

from holdfast.agent.launch.child import write_first_record
from holdfast.agent.sensors.ranks import RankSensor
from holdfast.api.rankrecord import Phase
from holdfast.api.telemetry import ProcessState


def test_a_worker_of_a_replica_group_is_known_by_its_rank_in_the_round(tmp_path: Path) -> None:
    first = {"RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "HOLDFAST_ROUND": "7", "HOLDFAST_RANK": "3"}
    write_first_record({**first, "HOLDFAST_RUN_DIR": str(tmp_path)}, pid=os.getpid(), now_ns=1)
    (rank,) = RankSensor(str(tmp_path)).read(3.0).ranks
    assert rank.rank == 3


def test_the_agent_knows_the_process_of_a_script_that_publishes_nothing(tmp_path: Path) -> None:
    environment = {
        "RANK": "5",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "8",
        "HOLDFAST_ROUND": "7",
        "HOLDFAST_RANK": "5",
        "HOLDFAST_RUN_DIR": str(tmp_path),
    }
    write_first_record(environment, pid=os.getpid(), now_ns=1_000_000_000)
    reading = RankSensor(tmp_path).read(3.0)
    assert reading.unreadable == ()
    (rank,) = reading.ranks
    assert (rank.rank, rank.round, rank.pid, rank.phase) == (5, 7, os.getpid(), Phase.IDLE)
    assert rank.process is ProcessState.RUNNING
    assert (rank.step, rank.loss, rank.pulse_age_s, rank.collective_sequence) == (None, None, None, None)
    assert [path.name for path in tmp_path.iterdir()] == ["rank-001.record"]
