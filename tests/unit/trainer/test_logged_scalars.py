"""`run.log`: what may be logged, what is sent of it, and that neither a fast loop nor a new round is hurt."""

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import torch
from trainer_builders import assignment

from holdfast.api.control import Assignment
from holdfast.api.errors import InvalidInput
from holdfast.api.scalars import NAMES_MAX, VALUES_PER_S, ScalarsLogged
from holdfast.trainer import hostcopy
from holdfast.trainer.group import RoundGroup
from holdfast.trainer.record import RankRecord, open_record
from holdfast.trainer.run import Run
from holdfast.trainer.scalarlog import ScalarLog
from holdfast.trainer.stay import Stay


class Logging:
    """A log, the record it goes by, and what was sent."""

    def __init__(self, folder: Path, *, rank: int = 0, ranks_shown: int = 1) -> None:
        self.log = ScalarLog()
        self.record: RankRecord = open_record(folder, 0)
        self.sent: list[ScalarsLogged] = []
        self.enter(round=7, rank=rank, ranks_shown=ranks_shown)

    def enter(self, *, round: int, rank: int = 0, ranks_shown: int = 1, restored: int | None = None) -> None:
        part = msgspec.structs.replace(assignment(round=round, rank=rank, local_rank=0), ranks_shown=ranks_shown)
        self.record.begin(part)
        self.log.begin(part, self.record)
        self.stay = Stay(part, cast(RoundGroup, None))
        self.stay.goes_on_from(restored)

    def rest(self) -> dict[str, Any]:
        self.log.send(self.stay, self.sent.append, rest=True)
        return dict(self.sent[-1].series) if self.sent else {}


@pytest.fixture
def here(tmp_path: Path) -> Logging:
    return Logging(tmp_path)


def test_values_are_sent_by_name_with_their_steps_and_where_the_round_began(here: Logging) -> None:
    here.enter(round=8, restored=20)
    here.log(21, lr=0.1, **{"eval/loss": torch.tensor([2.5])})
    here.log(22, lr=0.2)
    assert here.rest() == {"lr": ((21, 0.1), (22, 0.2)), "eval/loss": ((21, 2.5),)}
    assert (here.sent[0].round, here.sent[0].rank, here.sent[0].since) == (8, 0, 20)


def test_without_a_step_it_is_the_one_that_was_completed_last(here: Logging) -> None:
    here.log(warm=1.0)
    here.record.step(5, None, None, -1, -1)
    here.log(lr=0.5)
    assert here.rest() == {"warm": ((0, 1.0),), "lr": ((5, 0.5),)}


def test_a_value_that_is_not_finite_is_sent_as_what_it_is_and_is_no_fault(here: Logging) -> None:
    here.log(1, loss=float("inf"))
    assert here.rest() == {"loss": ((1, float("inf")),)}
    assert not here.record.was_unhealthy


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda log: log(1, **{"9lives": 1.0}), "name: '9lives' is not accepted; use a letter"),
        (lambda log: log(1, **{"a b": 1.0}), "name: 'a b' is not accepted; use a letter"),
        (lambda log: log(1, **{"eval/": 1.0}), "name: 'eval/' is not accepted; use a letter"),
        (lambda log: log(1, **{"a//b": 1.0}), "name: 'a//b' is not accepted; use a letter"),
        (lambda log: log(1, **{"a/../b": 1.0}), "name: 'a/../b' is not accepted; use a letter"),
        (lambda log: log(step=3), "name: 'step' is not accepted; choose another name; a step is given first"),
        (lambda log: log(-1, a=1.0), "step: -1 is not accepted; give a whole number of at least 0"),
        (lambda log: log(1.5, a=1.0), "step: 1.5 is not accepted; give a whole number of at least 0"),
        (lambda log: log(1, a="high"), "a: 'high' is not accepted; log a float, or a tensor of one element"),
        (lambda log: log(1, a=torch.ones(2)), "a: tensor([1., 1.]) is not accepted; log a float"),
        (lambda log: log(1, a=None), "a: None is not accepted; log a float"),
    ],
    ids=[
        "digit first",
        "a space",
        "nothing behind",
        "nothing between",
        "a way up",
        "a step by name",
        "negative step",
        "half a step",
        "a text",
        "two elements",
        "nothing",
    ],
)
def test_what_cannot_be_logged_is_refused_by_name(
    here: Logging, call: Callable[[ScalarLog], None], says: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        call(here.log)
    assert str(refused.value).startswith(says)


def test_names_are_bounded(here: Logging) -> None:
    for number in range(NAMES_MAX):
        here.log(1, **{f"name{number}": 1.0})
    with pytest.raises(InvalidInput, match=f"at most {NAMES_MAX} names"):
        here.log(1, one_more=1.0)


def test_more_than_may_be_sent_is_left_out_counted_and_told_once(
    here: Logging, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        for step in range(VALUES_PER_S + 10):
            here.log(step, lr=0.5)
        assert len(here.rest()["lr"]) == VALUES_PER_S
    assert [each.left_out for each in here.sent] == [10, 10]
    warned = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert len(warned) == 1


def test_a_rank_that_is_not_shown_sends_nothing_and_one_of_many_sends_its_share(tmp_path: Path) -> None:
    silent = Logging(tmp_path, rank=1)
    silent.log(1, lr=0.5)
    assert silent.rest() == {}
    shown = Logging(tmp_path, rank=1, ranks_shown=4)
    for step in range(VALUES_PER_S):
        shown.log(step, lr=0.5)
    assert len(shown.rest()["lr"]) == VALUES_PER_S // 4


def test_it_is_sent_once_a_second_and_the_rest_before_the_next_round(here: Logging) -> None:
    here.log(1, lr=0.1)
    here.log.send(here.stay, here.sent.append)
    here.log(2, lr=0.2)
    here.log.send(here.stay, here.sent.append)
    assert len(here.sent) == 1
    here.rest()
    here.enter(round=8, restored=1)
    here.log(2, lr=0.3)
    here.rest()
    assert [(each.round, each.series["lr"]) for each in here.sent] == [
        (7, ((1, 0.1),)),
        (7, ((2, 0.2),)),
        (8, ((2, 0.3),)),
    ]


def test_a_message_fits_what_a_launcher_may_say(here: Logging) -> None:
    for step in range(VALUES_PER_S // NAMES_MAX):
        here.log(2**52 + step, **{f"{'n' * 61}{number:03d}": 1 / 3 for number in range(NAMES_MAX)})
    here.rest()
    assert len(msgspec.msgpack.encode(here.sent[0])) < 48 * 1024


def test_nothing_is_sent_to_a_watchdog_that_would_not_understand_it(here: Logging) -> None:
    said = msgspec.to_builtins(msgspec.structs.replace(assignment(), ranks_shown=1))
    del said["ranks_shown"]  # as one before it said it
    older = msgspec.convert(said, Assignment)
    here.enter(round=8, ranks_shown=older.ranks_shown)
    here.log(1, lr=0.1)
    assert here.rest() == {}


class Device:
    """Stands for the numbers on their way from an accelerator: they arrive when it is `done`."""

    def __init__(self) -> None:
        self.under_way: list[tuple[int, float]] = []
        self.done = False

    def start(self, step: int, value: object) -> None:
        self.under_way.append((step, 2.5))

    def arrived(self) -> list[tuple[int, float]]:
        told, self.under_way = (self.under_way, []) if self.done else ([], self.under_way)
        return told


def test_a_value_on_an_accelerator_is_told_with_the_next_step_and_not_when_its_name_is_logged_again(
    here: Logging, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device()
    monkeypatch.setattr(hostcopy._DeviceCopies, "on_cuda", lambda: device)
    here.log(1000, **{"eval/loss": cast(Any, SimpleNamespace(is_cuda=True))})
    nothing = SimpleNamespace(
        take=lambda *_: (None, None), step=lambda *_: None, completed=lambda: None, is_open=False
    )
    run: Any = SimpleNamespace(
        log=here.log,
        **dict.fromkeys(("_values", "_record", "_batches"), nothing),
        **dict.fromkeys(("_drill", "_watched", "_rehearsing")),
        stay=nothing,
    )
    Run.step(run, 1000)
    assert here.rest() == {}
    device.done = True
    Run.step(run, 1001)
    assert here.rest() == {"eval/loss": ((1000, 2.5),)}
