"""What every tracker owes the courier: one run, no step twice, the values that count. Fakes and real ones."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow_server import StartingServer, starting_mlflow
from published import EventPlace, FakePlace, MlflowPlace, Place, WandbPlace

from holdfast.console.trackers import courier as courier_module
from holdfast.console.trackers.courier import Courier
from holdfast.console.trackers.records import Ended, Mark, Note, Row
from holdfast.console.trackers.spool import SpoolWriter

KINDS = ("fake", "fake that forgets", "fake that fails", "wandb", "tensorboard", "mlflow")


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartingServer]:
    with starting_mlflow(tmp_path_factory.mktemp("mlflow")) as server:
        yield server


@pytest.fixture(autouse=True)
def _is_impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courier_module, "RETRY_FIRST_S", 0.01)


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, mlflow: StartingServer, tmp_path: Path) -> Place:
    match request.param:
        case "wandb":
            return WandbPlace(tmp_path / "wandb")
        case "tensorboard":
            return EventPlace(tmp_path / "events")
        case "mlflow":
            return MlflowPlace(mlflow, tmp_path.name)
        case "fake that forgets":
            return FakePlace(forgets=True)
        case "fake that fails":
            return FakePlace(fails=frozenset((2, 3, 5, 8, 9, 14, 17)))
        case _:
            return FakePlace()


def bring(place: Place, spool: Path) -> Courier:
    """A process's courier brings out what there is, and ends."""
    rest = threading.Event()
    rest.set()
    courier = Courier("it", place.tracker(), spool, stop=threading.Event(), rest=rest)
    courier.run()
    assert courier.refused is None
    return courier


def rows(steps: range, *, round_: int, since: int) -> tuple[Row, ...]:
    return tuple(
        Row(step, 1000.0 + step, {"loss": round_ + step / 1024, "eval/acc": 0.5}, round_, since) for step in steps
    )


def of_round(*parts: tuple[int, range]) -> list[tuple[int, float]]:
    return [(step, round_ + step / 1024) for round_, steps in parts for step in steps]


NOTE = Note("inc-0001", "opened", 1000.0, 4, "inc-0001: ProcessExit of rank 1", "signal 9")


def test_steps_trained_again_stand_there_once_over_restarts_of_everything(place: Place, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    writer = SpoolWriter(spool, bytes_max=1 << 20)
    writer.append((*rows(range(1, 9), round_=1, since=0), NOTE), Mark(heard=8, final=4))
    bring(place, spool)
    # Another process goes on: the job fell back to step 4, and is at 12.
    writer = SpoolWriter(spool, bytes_max=1 << 20)
    writer.append(rows(range(5, 13), round_=2, since=4), Mark(heard=12, final=8))
    bring(place, spool)
    # It died before it wrote down how far it had come.
    (spool / "it.cursor").unlink()
    bring(place, spool)
    writer.append((Ended(2000.0, succeeded=True, reason="every rank finished"),), Mark(heard=12, final=12))
    bring(place, spool)
    assert place.read("loss") == of_round((1, range(1, 5)), (2, range(5, 13)))
    assert [step for step, _ in place.read("eval/acc")] == list(range(1, 13))
    assert place.read("again-1/loss") == []
    assert "ProcessExit of rank 1" in place.notes()


def test_a_rewind_behind_what_is_out_leaves_no_step_twice_and_shows_what_counts(
    place: Place, tmp_path: Path
) -> None:
    spool = tmp_path / "spool"
    writer = SpoolWriter(spool, bytes_max=1 << 20)
    writer.append(rows(range(1, 9), round_=1, since=0), Mark(heard=8, final=8))
    bring(place, spool)
    writer.append(rows(range(4, 11), round_=2, since=3), Mark(heard=10, final=6))
    bring(place, spool)
    writer.append((Ended(2000.0, succeeded=True, reason="every rank finished"),), Mark(heard=10, final=10))
    bring(place, spool)
    if place.tracker().forgets:
        assert place.read("loss") == of_round((1, range(1, 4)), (2, range(4, 11)))
        return
    assert place.read("loss") == of_round((1, range(1, 9)), (2, range(9, 11)))
    assert place.read("again-1/loss") == of_round((2, range(4, 9)))
    assert "again-1" in place.notes()


def test_what_did_not_fit_the_spool_is_said(tmp_path: Path) -> None:
    place, spool = FakePlace(), tmp_path / "spool"
    writer = SpoolWriter(spool, bytes_max=4000, segment_bytes=800)
    for step in range(1, 200):
        writer.append(rows(range(step, step + 1), round_=1, since=0), Mark(heard=step, final=step))
    bring(place, spool)
    shown = [step for step, _ in place.read("loss")]
    assert shown == list(range(shown[0], 200))
    assert f"{2 * (shown[0] - 1)} records did not fit" in place.notes()


def test_a_tracker_that_refuses_is_given_up_and_the_job_goes_on_from_there_when_it_is_put_right(
    tmp_path: Path,
) -> None:
    class Refusing(FakePlace):
        def call(self) -> None:
            raise ValueError("a library's own trouble")

    spool = tmp_path / "spool"
    SpoolWriter(spool, bytes_max=1 << 20).append(rows(range(1, 4), round_=1, since=0), Mark(heard=3, final=3))
    courier = Courier("it", Refusing().tracker(), spool, stop=threading.Event(), rest=threading.Event())
    courier.run()
    assert courier.refused == "it failed: a library's own trouble"
    place = FakePlace()
    bring(place, spool)
    assert [step for step, _ in place.read("loss")] == [1, 2, 3]


def test_a_run_that_mlflow_made_for_a_request_nobody_waited_for_is_deleted(mlflow: StartingServer) -> None:
    experiment = "two-runs"
    server, place = mlflow.started(), MlflowPlace(mlflow, experiment)
    tracker = place.tracker()
    tracker.open("", 0)
    (run,) = server.runs(experiment)
    info = run["info"]
    late = {
        "experiment_id": info["experiment_id"],
        "start_time": info["start_time"] + 1,
        "tags": run["data"]["tags"],
    }
    server.ask("runs/create", late)
    assert len(server.runs(experiment)) == 2
    assert place.tracker().open("", 0) == -1
    (left,) = server.runs(experiment)
    assert left["info"]["run_id"] == info["run_id"]
