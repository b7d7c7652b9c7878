"""`Run` in this process: started by hand, without any part of Holdfast around it."""

import math
import socket
import weakref
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from patience import patient
from server_process import free_port

from holdfast.api import rankrecord
from holdfast.api.bitflip import BitFlip, request_bit_flip
from holdfast.api.control import record_file_name
from holdfast.api.errors import Unavailable
from holdfast.api.rankrecord import Odd
from holdfast.trainer import Assignment, Phase, Run
from holdfast.trainer.group import HeldConnections


def test_the_training_function_runs_once_with_a_group_of_one() -> None:
    run = Run(environment={})
    seen = []

    def train(part: Assignment) -> None:
        total = torch.ones(3)
        dist.all_reduce(total)
        seen.append((part.rank, dist.get_world_size(), total.sum().item(), run.is_current()))
        run.step(1, loss=total.mean(), tokens=3)
        run.committed(1, "file:///nowhere/step-1")
        run.restored(None)

    run.enter(train)
    assert seen == [(0, 1, 3.0, True)]
    assert not dist.is_initialized()
    assert not run.is_current()


def test_a_run_directory_alone_is_enough_to_be_watched(tmp_path: Path) -> None:
    run = Run(environment={"HOLDFAST_RUN_DIR": str(tmp_path)})

    def train(part: Assignment) -> None:
        with run.during(Phase.CHECKPOINT):
            run.step(1, loss=2.0)
            run.phase(Phase.BACKWARD)

    run.enter(train)
    zone = rankrecord.unpack_step((tmp_path / record_file_name(0)).read_bytes())
    assert (zone.step, zone.loss, zone.phase) == (1, 2.0, Phase.IDLE)


def test_a_step_that_was_not_finite_is_kept_and_one_that_was_left_out_does_no_harm(tmp_path: Path) -> None:
    run = Run(environment={"HOLDFAST_RUN_DIR": str(tmp_path)})
    finite: list[bool | None] = []
    skips: list[bool] = []

    def train(part: Assignment) -> None:
        for step, loss in ((1, 1.0), (2, math.nan), (3, 1.0), (4, math.inf)):
            if step < 4:
                skips.append(run.should_skip(step, loss=torch.tensor(loss)))
            run.step(step, loss=torch.tensor(loss))
            finite.append(run.is_finite())
        run.step(5)
        finite.append(run.is_finite())

    run.enter(train)
    assert (skips, finite) == ([False, True, False], [True, True, True, False, False])
    zone = rankrecord.unpack_health((tmp_path / record_file_name(0)).read_bytes())
    assert (zone.step, zone.count, zone.loss) == (4, 1, Odd.INFINITE)
    assert (zone.skipped, zone.skipped_count, zone.skipped_loss) == (2, 1, Odd.NAN)


def test_a_step_that_the_script_left_out_by_itself_does_no_harm_either(tmp_path: Path) -> None:
    run = Run(environment={"HOLDFAST_RUN_DIR": str(tmp_path)})
    run.enter(lambda part: run.step(1, loss=1.0, grad_norm=math.inf, skipped=True))
    zone = rankrecord.unpack_health((tmp_path / record_file_name(0)).read_bytes())
    assert (zone.count, zone.skipped_count) == (0, 0)


def test_the_first_model_that_is_watched_counts_and_is_let_go_with_its_round(tmp_path: Path) -> None:
    run = Run(environment={"HOLDFAST_RUN_DIR": str(tmp_path), "HOLDFAST_CORRUPTIBLE": "1"})
    changed = []
    models = []

    def train(part: Assignment) -> None:
        watched, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
        models.append(weakref.ref(watched))
        before = [model.bias.clone() for model in (watched, other)]
        run.watch(watched)
        run.watch(other)
        request_bit_flip(tmp_path, BitFlip(rank=0, step=2))
        for step in (1, 2):
            run.step(step)
            changed.append([not torch.equal(watched.bias, before[0]), not torch.equal(other.bias, before[1])])

    run.enter(train)
    assert changed == [[False, False], [True, False]]
    assert models[0]() is None


def test_the_scripts_exception_propagates_and_the_group_is_gone() -> None:
    def train(part: Assignment) -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        Run(environment={}).enter(train)
    assert not dist.is_initialized()


def test_the_assignment_is_known_inside_a_round_only() -> None:
    with pytest.raises(RuntimeError, match="in no round"):
        _ = Run(environment={}).assignment


def test_a_launcher_that_does_not_answer_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="control socket"):
        Run(environment={"HOLDFAST_CONTROL": str(tmp_path / "control")})


def test_only_connections_made_since_are_ended_and_their_peers_do_not_notice() -> None:
    with socket.create_server(("127.0.0.1", free_port())) as listener:
        address = listener.getsockname()
        with socket.create_connection(address) as older, listener.accept()[0] as older_peer:
            connections = HeldConnections()
            younger = socket.create_connection(address)
            connections.end()  # Before the peer is accepted, for it is of this process as well.
            with listener.accept()[0] as younger_peer:
                assert younger.recv(1) == b""
                younger.sendall(b"x")
                younger.close()
                younger_peer.settimeout(patient(10))
                assert younger_peer.recv(1) == b"x"
                younger_peer.settimeout(0.05)
                with pytest.raises(TimeoutError):
                    younger_peer.recv(1)
                older_peer.sendall(b"y")
                assert older.recv(1) == b"y"
                connections.release()
                assert younger_peer.recv(1) == b""
        with socket.create_connection(address), listener.accept()[0]:
            pass  # The listener was left alone.
