"""Real worker processes behind a fake launcher: they enter rounds, lose peers, and go on in the same process."""

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import patient
from trainer_fake_launcher import FakeLauncher, Worker

from holdfast.api.control import Entered, Finished, RoundEnded, RoundLeft
from holdfast.api.membership import CollectiveFailed
from holdfast.api.rankrecord import Phase

RING = Path(__file__).with_name("ring_worker.py")


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[FakeLauncher]:
    with FakeLauncher(tmp_path) as fake:
        yield fake


def resources(worker: Worker) -> tuple[int, int]:
    """Open files and threads of the worker's process."""
    process = Path(f"/proc/{worker.process.pid}")
    return len(os.listdir(process / "fd")), len(os.listdir(process / "task"))


def test_workers_enter_train_publish_and_finish(launcher: FakeLauncher) -> None:
    workers = launcher.start(2, RING, "--steps", "20")
    launcher.show(4, workers)
    for rank, worker in enumerate(workers):
        assert worker.expect(Entered).round == 4
        assert worker.expect(Finished).round == 4
        assert worker.process.wait(timeout=patient(30)) == 0
        zone = worker.step_zone()
        assert (zone.round, zone.rank, zone.world_size, zone.step) == (4, rank, 2, 19)
        assert (zone.loss, zone.tokens, zone.pid) == (4.0, 1000, worker.process.pid)
        assert zone.phase is Phase.IDLE


def test_survivors_of_a_killed_peer_say_so_and_go_on_without_it_in_the_same_process(
    launcher: FakeLauncher,
) -> None:
    workers = launcher.start(3, RING)
    launcher.show(0, workers)
    for worker in workers:
        worker.await_step(round=0, at_least=3)
    workers[1].process.kill()
    survivors = [workers[0], workers[2]]
    failed = survivors[0].expect(CollectiveFailed)
    assert (failed.round, failed.rank) == (0, 0)
    assert failed.error
    left = launcher.end(0, survivors)
    assert all(message.step is not None and message.step >= 3 for message in left)
    pids = [worker.process.pid for worker in survivors]
    launcher.show(1, survivors)
    for worker in survivors:
        worker.await_step(round=1, at_least=3)
    assert [worker.step_zone().pid for worker in survivors] == pids
    assert {worker.step_zone().world_size for worker in survivors} == {2}


def test_a_stopped_peer_does_not_keep_the_others_when_the_round_ends(launcher: FakeLauncher) -> None:
    workers = launcher.start(3, RING)
    launcher.show(0, workers)
    for worker in workers:
        worker.await_step(round=0, at_least=3)
    workers[2].process.send_signal(signal.SIGSTOP)
    time.sleep(0.1)  # Time for the others to run into the collective that the stopped one does not join.
    survivors = workers[:2]
    launcher.end(0, survivors)
    launcher.show(1, survivors)
    for worker in survivors:
        worker.await_step(round=1)


def test_a_world_can_grow_and_keep_its_processes(launcher: FakeLauncher) -> None:
    first = launcher.start(1, RING)
    launcher.show(0, first)
    first[0].await_step(round=0, at_least=3)
    everybody = [*launcher.start(1, RING), *first]
    launcher.end(0, first)
    launcher.show(1, everybody)
    for worker in everybody:
        worker.await_step(round=1, at_least=3)
    assert everybody[1].step_zone().rank == 1


def test_a_process_that_comes_back_with_another_rank_shards_as_that_rank(launcher: FakeLauncher) -> None:
    workers = launcher.start(3, RING, "--sharded")
    for round in range(3):
        launcher.show(round, workers)
        for worker in workers:
            worker.await_step(round=round, at_least=2)
        launcher.end(round, workers)
        workers = [*workers[1:], workers[0]]


def test_thirty_rounds_leave_nothing_behind(launcher: FakeLauncher) -> None:
    workers = launcher.start(2, RING, "--sharded", "--pace", "0.001")
    launcher.show(0, workers)
    counted = []
    for round in range(30):
        for worker in workers:
            worker.await_step(round=round, at_least=1)
        counted.append([resources(worker) for worker in workers])
        launcher.end(round, workers)
        launcher.show(round + 1, workers)
    # One more or less is a connection caught while it opens or closes.
    for (files_early, threads_early), (files_late, threads_late) in zip(counted[2], counted[-1], strict=True):
        assert abs(files_late - files_early) <= 2
        assert threads_late <= threads_early + 1


def test_a_round_that_ends_while_it_forms_is_left(launcher: FakeLauncher) -> None:
    present, absent = launcher.start(2, RING)
    absent.process.send_signal(signal.SIGSTOP)  # before the round is shown, or it may be formed by now
    launcher.show(0, [absent, present])
    present.say(RoundEnded(round=0, reason="rank 0 is stopped"))
    assert present.expect(RoundLeft).step is None
    launcher.show(1, [present])
    present.await_step(round=1)


@pytest.mark.parametrize("seed", range(3))
def test_rounds_that_end_at_any_moment_leave_processes_that_train_with_new_ones(
    launcher: FakeLauncher, seed: int
) -> None:
    chance = random.Random(seed)
    workers = launcher.start(3, RING)
    for round in range(12):
        if chance.random() < 0.3:
            place = chance.randrange(3)
            workers[place].process.kill()
            workers[place : place + 1] = launcher.start(1, RING)
        chance.shuffle(workers)
        told = list(workers) if chance.random() < 0.4 else chance.sample(workers, 2)
        launcher.show(round, workers, told=told)
        time.sleep(chance.uniform(0.0, 0.2))  # from before the ranks meet to a few steps later
        for worker in launcher.end_and_find_trapped(round, told, within_s=5.0):
            worker.process.kill()
            workers.remove(worker)
            workers += launcher.start(1, RING)
    workers[0].process.kill()
    workers[:1] = launcher.start(1, RING)
    launcher.show(12, workers)
    for worker in workers:
        worker.await_step(round=12, at_least=2)


def test_a_loop_that_only_computes_leaves_at_its_next_step(launcher: FakeLauncher) -> None:
    workers = launcher.start(2, RING, "--compute")
    launcher.show(0, workers)
    for worker in workers:
        worker.await_step(round=0, at_least=2)
    launcher.end(0, workers)


def test_a_script_that_swallows_exceptions_cannot_swallow_the_end_of_its_round(launcher: FakeLauncher) -> None:
    workers = launcher.start(2, RING, "--swallow")
    launcher.show(0, workers)
    for worker in workers:
        worker.await_step(round=0, at_least=2)
    launcher.end(0, workers)
    launcher.show(1, workers)
    for worker in workers:
        worker.await_step(round=1)


def test_the_scripts_own_exception_ends_its_process_before_a_peer_hears_of_it(launcher: FakeLauncher) -> None:
    workers = launcher.start(2, RING, "--raise-at", "5", "--linger")
    launcher.show(0, workers)
    assert workers[0].expect(CollectiveFailed).round == 0
    assert (workers[1].run_directory / f"lingered-{workers[1].process.pid}").exists()
    assert workers[1].process.wait(timeout=patient(30)) == 1
    assert "ValueError: the script's own fault" in workers[1].process.log.read_text()
    assert workers[0].process.poll() is None


def test_the_side_thread_shows_how_far_the_collectives_are(launcher: FakeLauncher) -> None:
    workers = launcher.start(2, RING)
    launcher.show(0, workers)
    for worker in workers:
        worker.await_step(round=0)
    pulse = workers[0].await_pulse(lambda pulse: pulse.collective_sequence > 0)
    assert pulse.beat_ns > 0


def test_a_worker_trains_on_when_its_launcher_is_gone(launcher: FakeLauncher) -> None:
    (worker,) = launcher.start(1, RING, "--steps", "100")
    launcher.show(0, [worker])
    worker.await_step(round=0, at_least=3)
    worker.connection.close()
    assert worker.process.wait(timeout=patient(30)) == 0
    assert worker.step_zone().step == 99
