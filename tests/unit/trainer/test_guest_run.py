"""A run inside of a framework's own loop: one for the process, and it only says of errors whose fault they are."""

import sys
from collections.abc import Iterator

import pytest
from trainer_builders import assignment

from holdfast.api.rankrecord import Phase
from holdfast.trainer import GuestRun, Run, guest, joined
from holdfast.trainer.guest import BorrowedGroup


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that has joined nothing yet, started by hand."""
    for name in ("RANK", "HOLDFAST_CONTROL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(guest._Guest, "run", None)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    yield
    if guest._Guest.run is not None:
        guest._Guest.run._side.close()


@pytest.mark.usefixtures("alone")
def test_a_process_joins_once_and_counts_its_steps_in_the_framework_s_loop() -> None:
    run = joined()
    assert isinstance(run, GuestRun)
    assert joined() is run
    assert run.assignment.world_size == 1
    for step in (1, 2):
        with run.during(Phase.CHECKPOINT):
            assert run.save_due(step) is None
        run.step(step, loss=1.0)
    assert run._record.last_step == 2
    assert run.is_finite() is True
    run.leave()


@pytest.mark.usefixtures("alone")
def test_a_child_that_was_forked_is_not_its_parent_s_guest(monkeypatch: pytest.MonkeyPatch) -> None:
    run = joined()
    assert isinstance(run, GuestRun)
    monkeypatch.setattr(guest._Guest, "pid", -1)
    other = joined()
    assert other is not run
    run._side.close()


def test_inside_of_the_function_that_was_entered_it_is_the_run_that_entered() -> None:
    run, seen = Run(environment={}), list[Run]()
    run.enter(lambda part: seen.append(joined()))
    assert seen == [run]
    assert Run.entered is None


@pytest.mark.usefixtures("alone")
def test_an_error_of_the_script_is_left_to_the_script() -> None:
    run = joined()
    assert isinstance(run, GuestRun)
    run.failed(ValueError("a bad batch"))  # returns: the caller raises it
    run.failed(KeyboardInterrupt())


@pytest.mark.usefixtures("alone")
def test_what_nobody_catches_is_printed_as_before(capsys: pytest.CaptureFixture[str]) -> None:
    joined()
    error = ValueError("a bad batch")
    sys.excepthook(ValueError, error, None)
    assert "ValueError: a bad batch" in capsys.readouterr().err


def test_a_process_group_of_a_framework_is_left_alone() -> None:
    group = BorrowedGroup(assignment(world_size=2))
    group.form(lambda: None)  # there is none
    group.abort()
    group.drop()
    group.close()
    assert group.store is None
    assert not group._is_closed
