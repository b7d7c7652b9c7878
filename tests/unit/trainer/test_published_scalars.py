import math

import pytest
import torch

from holdfast.api.errors import InvalidInput
from holdfast.trainer import Assignment, Run
from holdfast.trainer.hostcopy import SLOTS, Scalar, _DeviceCopies, _Slot


class Heard(list[tuple[int, float]]):
    """The steps that were told of as not finite, and their values."""

    def __call__(self, step: int, value: float) -> None:
        self.append((step, value))


@pytest.mark.parametrize(
    "given",
    [2.5, torch.tensor(2.5), torch.tensor([2.5]), torch.tensor(2.5, dtype=torch.bfloat16)],
    ids=["float", "tensor", "one element", "bfloat16"],
)
def test_a_number_on_the_host_is_read_at_once(given: float | torch.Tensor) -> None:
    heard = Heard()
    assert Scalar(heard).take(1, given) == 2.5
    assert heard == []


def test_a_loss_that_still_has_its_graph_is_read_without_a_warning() -> None:
    assert Scalar(Heard()).take(1, torch.tensor(2.0, requires_grad=True) * 2) == 4.0


def test_an_integer_is_a_number() -> None:
    assert Scalar(Heard()).take(1, 3) == 3.0


@pytest.mark.parametrize("given", ["high", [1.0, 2.0], {}, object(), torch.ones(3), torch.ones(0)])
def test_what_is_no_number_is_the_scripts_mistake_and_said_to_be(given: object) -> None:
    with pytest.raises(InvalidInput, match="loss or grad_norm"):
        Scalar(Heard()).take(1, given)  # type: ignore[arg-type]


@pytest.mark.parametrize("step", ["3", 3.5, None, torch.tensor(3.5)])
def test_a_step_that_is_no_whole_number_is_the_scripts_mistake(step: object) -> None:
    def train(part: Assignment) -> None:
        with pytest.raises(InvalidInput, match="step: "):
            run.step(step, loss=1.0)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="loss or grad_norm"):
            run.step(1, loss="low")  # type: ignore[arg-type]
        run.step(torch.tensor(1), loss=1.0)  # type: ignore[arg-type]  # as good as one
        assert run._record.last_step == 1

    run = Run(environment={})
    run.enter(train)


def test_what_was_not_given_is_unknown_even_after_something_was() -> None:
    scalar = Scalar(Heard())
    scalar.take(1, 1.0)
    assert scalar.take(2, None) is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", [float, torch.tensor], ids=["float", "tensor"])
def test_a_value_that_is_not_finite_stays_what_it_is_and_is_told(value: float, kind: type) -> None:
    heard = Heard()
    taken = Scalar(heard).take(7, kind(value))
    assert repr(taken) == repr(value)
    assert [(step, repr(told)) for step, told in heard] == [(7, repr(value))]


class Event:
    """A device's event: it has happened when the test says so."""

    def __init__(self) -> None:
        self.happened = True

    def record(self) -> None:
        self.happened = False

    def query(self) -> bool:
        return self.happened

    def synchronize(self) -> None:
        self.happened = True


class Device:
    """Copies from a device that finish when `catch_up` is called."""

    def __init__(self) -> None:
        self.events = [Event() for _ in range(SLOTS)]
        host = torch.empty(SLOTS, dtype=torch.float64)
        self.copies = _DeviceCopies([_Slot(host[place], event) for place, event in enumerate(self.events)])

    def catch_up(self) -> list[tuple[int, float]]:
        for event in self.events:
            event.happened = True
        return self.copies.arrived()


def test_every_number_of_a_device_arrives_in_order_and_with_its_step() -> None:
    device = Device()
    for step in range(3):
        device.copies.start(step, torch.tensor(float(step)))
        assert device.copies.arrived() == []
    assert device.catch_up() == [(0, 0.0), (1, 1.0), (2, 2.0)]


def test_a_nan_is_not_missed_when_the_host_is_far_ahead_of_its_device() -> None:
    device = Device()
    for step in range(3 * SLOTS):
        device.copies.start(step, torch.tensor(math.nan if step == SLOTS + 2 else 1.0))
    assert [value for _, value in device.catch_up()] == [1.0] * SLOTS
    device.copies.start(99, torch.tensor(1.0))
    ((step, value),) = device.catch_up()
    assert (step, math.isnan(value)) == (99, True)


def test_what_is_on_its_way_when_training_ends_is_waited_for() -> None:
    device, told = Device(), list[int]()
    scalar = Scalar(lambda step, value: told.append(step))
    scalar._copies = device.copies
    for step in range(SLOTS):
        device.copies.start(step, torch.tensor(math.nan if step == SLOTS - 1 else 1.0))
    device.copies.start(SLOTS, torch.tensor(math.nan))  # held back: no slot is free
    scalar.finish(SLOTS)
    assert told == [SLOTS - 1, SLOTS]


def test_what_a_device_was_asked_in_the_round_before_is_not_told_in_this_one() -> None:
    device = Device()
    device.copies.start(5, torch.tensor(math.nan))
    device.copies.discard()
    device.copies.start(1, torch.tensor(2.0))
    assert device.catch_up() == [(1, 2.0)]
