"""What a worker makes of its launcher's messages, in whatever order they come."""

import threading
from typing import cast

import msgspec
import pytest
from trainer_builders import assignment

from holdfast.api.control import Attached, Finished, FromWorker, RoundEnded
from holdfast.api.errors import Unavailable
from holdfast.api.membership import LedgerTold, SaveWanted, Verified
from holdfast.api.round import Endpoint, GroupSeat, Restore
from holdfast.trainer import RoundEnded as RoundIsOver
from holdfast.trainer.group import RoundGroup
from holdfast.trainer.host import Alone, Control, ControlClosed, Launcher
from holdfast.trainer.stay import Stay


class Wire:
    """Stands in for the control socket."""

    def __init__(self) -> None:
        self.sent: list[msgspec.Struct] = []
        self.is_broken = False

    def send(self, message: FromWorker) -> None:
        if self.is_broken:
            raise ControlClosed("gone")
        self.sent.append(message)


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def launcher(wire: Wire) -> Launcher:
    return Launcher(cast(Control, wire), pid=4711)


def stay_in(round: int) -> Stay:
    return Stay(assignment(round=round), cast(RoundGroup, None))


def test_the_worker_says_first_that_it_is_attached(launcher: Launcher, wire: Wire) -> None:
    assert wire.sent == [Attached(pid=4711)]


def test_the_newest_assignment_is_the_one_entered(launcher: Launcher) -> None:
    launcher.take(assignment(round=3))
    launcher.take(assignment(round=4))
    assert launcher.next_assignment().round == 4


def test_the_end_of_its_round_ends_the_stay_with_the_reason(launcher: Launcher) -> None:
    stay = stay_in(3)
    launcher.attend(stay)
    stay.check()
    launcher.take(RoundEnded(round=3, reason="rank 1 died"))
    with pytest.raises(RoundIsOver, match="round 3 ended: rank 1 died"):
        stay.check()


@pytest.mark.parametrize("ended", [2, 1])
def test_the_end_of_an_older_round_changes_nothing(launcher: Launcher, ended: int) -> None:
    stay = stay_in(3)
    launcher.attend(stay)
    launcher.take(RoundEnded(round=ended, reason="late"))
    assert not stay.is_over


def test_a_newer_assignment_ends_the_stay_by_itself(launcher: Launcher) -> None:
    stay = stay_in(3)
    launcher.attend(stay)
    launcher.take(assignment(round=5))
    assert stay.is_over
    assert launcher.next_assignment().round == 5


def test_a_round_that_ended_before_it_was_entered_is_over_at_once(launcher: Launcher) -> None:
    launcher.take(assignment(round=3))
    launcher.take(RoundEnded(round=3, reason="changed my mind"))
    stay = stay_in(launcher.next_assignment().round)
    launcher.attend(stay)
    assert stay.is_over


def test_who_waits_for_a_round_is_told_when_none_can_come(launcher: Launcher) -> None:
    launcher.lose("the launcher closed the control socket")
    with pytest.raises(Unavailable, match="no further round will come"):
        launcher.next_assignment()


def test_an_assignment_wakes_who_waits_for_it(launcher: Launcher) -> None:
    taken: list[int] = []
    waiter = threading.Thread(target=lambda: taken.append(launcher.next_assignment().round))
    waiter.start()
    launcher.take(assignment(round=9))
    waiter.join()
    assert taken == [9]


def test_a_lost_launcher_does_not_end_the_round_but_cannot_heal_it(launcher: Launcher) -> None:
    stay = stay_in(3)
    launcher.attend(stay)
    launcher.lose("gone")
    assert not stay.is_over
    assert not launcher.can_heal()


def test_a_message_that_cannot_be_sent_does_not_stop_training(
    launcher: Launcher, wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    wire.is_broken = True
    launcher.say(Finished(round=3))
    assert "launcher does not listen" in caplog.text


def test_a_process_without_a_launcher_has_its_one_round_and_nobody_to_heal_it() -> None:
    alone = Alone(assignment(round=2))
    assert alone.next_assignment().round == 2
    assert not alone.can_heal()


def test_the_end_of_a_round_is_not_swallowed_by_except_exception() -> None:
    assert not issubclass(RoundIsOver, Exception)


def test_a_wanted_save_reaches_the_round_it_is_for_whichever_comes_first(launcher: Launcher) -> None:
    launcher.take(SaveWanted(round=3, number=8))
    stay = stay_in(3)
    launcher.attend(stay)
    assert stay.saves.newest == 8
    launcher.take(SaveWanted(round=3, number=9))
    assert stay.saves.newest == 9


def test_a_wanted_save_of_another_round_is_not_heard(launcher: Launcher) -> None:
    stay = stay_in(3)
    launcher.attend(stay)
    launcher.take(SaveWanted(round=2, number=8))
    launcher.take(SaveWanted(round=4, number=9))
    assert stay.saves.newest == stay.saves.answered


def test_what_the_job_has_cost_is_kept_for_the_next_checkpoint(launcher: Launcher) -> None:
    assert launcher.ledger is None
    launcher.take(LedgerTold(round=3, report=b"{1}"))
    launcher.take(LedgerTold(round=3, report=b"{2}"))
    assert launcher.ledger == b"{2}"
    assert Alone(assignment(round=2)).ledger is None


def test_what_is_verified_reaches_its_round_and_no_other(launcher: Launcher) -> None:
    launcher.take(Verified(round=3, step=40))
    stay = stay_in(3)
    launcher.attend(stay)
    assert stay.standing.verified == 40
    launcher.take(Verified(round=3, step=60))
    launcher.take(Verified(round=2, step=80))
    launcher.take(Verified(round=4, step=90))
    assert stay.standing.verified == 60


@pytest.mark.parametrize(
    ("told", "restored", "verified"),
    [(40, 60, 40), (40, 40, 40), (40, 20, 20), (40, None, None), (None, 20, None)],
)
def test_what_is_trained_anew_is_not_verified(
    told: int | None, restored: int | None, verified: int | None
) -> None:
    part = msgspec.structs.replace(assignment(round=3), restore=Restore(step=60, verified=told))
    stay = Stay(part, cast(RoundGroup, None))
    assert stay.standing.verified == told
    stay.goes_on_from(restored)
    assert stay.standing.verified == verified


@pytest.mark.parametrize(
    ("restored", "unhealthy_from"), [(40, None), (49, None), (50, 50), (60, 50), (None, None)]
)
def test_what_goes_on_from_before_the_first_unhealthy_step_is_healthy(
    restored: int | None, unhealthy_from: int | None
) -> None:
    part = msgspec.structs.replace(assignment(round=3), restore=Restore(step=60, unhealthy_from=50))
    stay = Stay(part, stay_in(3).group)
    assert stay.standing.unhealthy_from == 50
    stay.goes_on_from(restored)
    assert stay.standing.unhealthy_from == unhealthy_from


def test_what_is_unhealthy_reaches_its_round(launcher: Launcher) -> None:
    stay = stay_in(3)
    launcher.attend(stay)
    launcher.take(Verified(round=3, step=40, unhealthy_from=45))
    assert (stay.standing.verified, stay.standing.unhealthy_from) == (40, 45)


def test_a_replica_group_hears_what_is_wanted_in_a_round_before_it_takes_that_up(
    launcher: Launcher,
) -> None:
    seat = GroupSeat(1, 0, 2, Endpoint("127.0.0.1", 29500), 0, 1, meets_in=1)
    first = msgspec.structs.replace(assignment(round=1), group=seat)
    stay = Stay(first, cast(RoundGroup, None))
    launcher.attend(stay)
    launcher.take(msgspec.structs.replace(first, round=2))
    launcher.take(SaveWanted(2, 5))
    launcher.take(Verified(2, 40, None))
    assert stay.assignment.round == 1
    assert stay.saves.newest == 5
    assert stay.standing.verified == 40
