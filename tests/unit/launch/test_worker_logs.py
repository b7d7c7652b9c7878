"""Workers' logs on a node: who wrote what, and how much of it is kept."""

import os
from pathlib import Path

from holdfast.agent.launch.logs import (
    BYTES_KEPT,
    RUNS_KEPT,
    EarlierRank,
    WorkerLogs,
    WorkerRun,
    log_path,
    read_register,
    trim,
)


class Node:
    """A launcher's register; each process it starts writes a line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 100.0
        self.logs = WorkerLogs(folder, member="m1", node="n1", clock=lambda: self.now)

    def start(self, pid: int, *, rank: int, round_: int, local_rank: int = 0) -> None:
        path = log_path(self.folder, rank, round_)
        offset = path.stat().st_size if path.exists() else 0
        with path.open("a") as log:
            log.write(f"{pid} says hello\n")
        self.now += 1.0
        self.logs.begin(pid, rank=rank, local_rank=local_rank, round_=round_, path=path, offset=offset)

    @property
    def runs(self) -> tuple[WorkerRun, ...]:
        return read_register(self.folder / "m1.workers.json")


def test_the_register_says_who_wrote_what_and_how_it_ended(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.start(10, rank=1, round_=2)
    node.start(11, rank=1, round_=2)
    node.logs.end(10, "signal 9")
    first, second = sorted(node.runs, key=lambda run: run.started_at)
    assert (first.pid, first.rank, first.node, first.offset, first.ended_with) == (10, 1, "n1", 0, "signal 9")
    assert (second.pid, second.offset, second.ended_at) == (11, len("10 says hello\n"), None)
    assert first.file == second.file == "rank-00001.round-0002.log"


def test_a_worker_that_goes_on_as_another_rank_is_found_by_it(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.start(10, rank=3, round_=2)
    node.now = 200.0
    assert node.logs.assign([(10, 1)])
    assert not node.logs.assign([(10, 1), (99, 4)]), "no news, and a process nobody knows"
    (run,) = node.runs
    assert (run.rank, run.round, run.file, run.ranked_at) == (1, 2, "rank-00003.round-0002.log", 200.0)
    assert run.earlier == (EarlierRank(3, 101.0),)


def test_only_the_newest_processes_of_a_place_are_kept_with_their_files(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.start(1, rank=7, round_=1, local_rank=1)
    for pid in range(10, 10 + RUNS_KEPT + 3):
        node.start(pid, rank=0, round_=pid)
        node.logs.end(pid, "exit code 1")
    kept = [run.pid for run in node.runs if run.local_rank == 0]
    assert kept == list(range(13, 13 + RUNS_KEPT))
    assert [run.pid for run in node.runs if run.local_rank == 1] == [1], "of another place"
    files = {path.name for path in tmp_path.glob("*.log")}
    assert files == {run.file for run in node.runs}


def test_a_launcher_that_starts_again_goes_on_with_what_is_there(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.start(10, rank=0, round_=1)
    again = Node(tmp_path)
    again.now = 300.0
    again.start(11, rank=0, round_=2)
    assert [(run.pid, run.ended_at) for run in again.runs] == [(10, None), (11, None)]


def test_a_register_that_cannot_be_read_or_written_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "m1.workers.json").write_text("{")
    node = Node(tmp_path)
    node.logs.end(10, "signal 9")
    nowhere = WorkerLogs(tmp_path / "none", member="m1", node="n1", clock=lambda: 1.0)
    nowhere.begin(1, rank=0, local_rank=0, round_=1, path=tmp_path / "none" / "x.log", offset=0)
    assert read_register(tmp_path / "none" / "m1.workers.json") == ()


def test_the_beginning_of_a_log_that_grew_is_given_back_and_its_end_stays_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "worker.log"
    with path.open("ab", buffering=0) as worker:
        worker.write(b"a" * 100_000)
        worker.write(b"the end\n")
        before = path.stat()
        trim(path, kept_bytes=20_000)
        worker.write(b"and more\n")
    after = path.stat()
    assert after.st_size == before.st_size + len("and more\n")
    assert path.read_bytes().endswith(b"aaaathe end\nand more\n")
    with path.open("rb") as log:
        first = os.lseek(log.fileno(), 0, os.SEEK_DATA)
    if first:  # a file system without holes keeps it all
        assert after.st_blocks * 512 <= 20_000 + 3 * 4096
    trim(path, kept_bytes=BYTES_KEPT)
    trim(tmp_path / "none", kept_bytes=1)
