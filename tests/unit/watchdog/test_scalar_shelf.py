"""What a watchdog keeps of what scripts log, and how little any number of ranks can make it keep."""

from holdfast.api.scalars import VALUES_PER_S, ScalarsLogged
from holdfast.watchdog.server.scalarshelf import ANSWERED_VALUES, BURST_S, ScalarShelf

JOB = "research/gpt"


def logged(count: int = 1, *, rank: int = 0) -> ScalarsLogged:
    return ScalarsLogged(1, rank, {"loss": tuple((step, 0.5) for step in range(count))})


def numbers(shelf: ScalarShelf, after: int = 0, *, life: str | None = None, job: str = JOB) -> list[int]:
    return [each.number for each in shelf.after(job, after, shelf.life if life is None else life)[0]]


def test_messages_come_in_order_behind_the_one_that_is_known() -> None:
    shelf = ScalarShelf()
    for second in range(4):
        shelf.keep(JOB, logged(), second)
    assert numbers(shelf) == [1, 2, 3, 4]
    assert numbers(shelf, 3) == [4]
    assert numbers(shelf, 3, life="another watchdog's") == [1, 2, 3, 4]
    assert numbers(shelf, job="research/other") == []


def test_the_oldest_go_and_who_was_away_learns_how_many() -> None:
    shelf = ScalarShelf(job_values=10)
    for second in range(8):
        shelf.keep(JOB, logged(4), second)
    kept, lost = shelf.after(JOB, 3, shelf.life)
    assert ([each.number for each in kept], lost) == ([7, 8], 3)


def test_one_job_that_fills_the_shelf_takes_nothing_from_another() -> None:
    shelf = ScalarShelf(total_values=20)
    shelf.keep("research/small", logged(4), 0.0)
    for second in range(20):
        shelf.keep(JOB, logged(4), second)
    assert numbers(shelf, job="research/small") == [1]
    assert numbers(shelf) == [17, 18, 19, 20]


def test_more_than_a_job_may_say_is_left_out_and_counted_and_after_a_while_it_may_again() -> None:
    shelf = ScalarShelf()
    burst = int(VALUES_PER_S * BURST_S)
    for _ in range(burst // VALUES_PER_S + 3):
        shelf.keep(JOB, logged(VALUES_PER_S), 5.0)
    kept, _ = shelf.after(JOB, burst // VALUES_PER_S, shelf.life)
    assert [(each.logged.series, each.logged.left_out) for each in kept] == [({}, 3 * VALUES_PER_S)]
    shelf.keep(JOB, logged(VALUES_PER_S), 6.0)
    newest, _ = shelf.after(JOB, kept[-1].number, shelf.life)
    assert [len(each.logged.series["loss"]) for each in newest] == [VALUES_PER_S]


def test_names_without_values_take_room_like_values() -> None:
    shelf = ScalarShelf(job_values=2000)
    for number in range(20):
        names = {f"name-{number}-{at}": () for at in range(900)}
        shelf.keep(JOB, ScalarsLogged(1, number % 2, {**names, "loss": ((1, 0.5),)}), 20.0 * number)
    kept, _ = shelf.after(JOB, 0, shelf.life)
    assert [len(each.logged.series) for each in kept] == [901, 901]


def test_how_much_was_left_out_takes_the_place_of_no_value() -> None:
    shelf = ScalarShelf()
    shelf.keep(JOB, logged(), 0.0)
    for number in range(100):
        shelf.keep(JOB, ScalarsLogged(1, number % 2, {}, left_out=1), 0.0)
    kept, lost = shelf.after(JOB, 0, shelf.life)
    told = [(dict(each.logged.series), each.logged.left_out) for each in kept]
    assert told[0] == ({"loss": ((0, 0.5),)}, 0)
    assert [left_out for _, left_out in told[1:]] == [100]
    assert lost == 0


def test_an_answer_is_bounded_and_the_next_one_goes_on() -> None:
    shelf = ScalarShelf()
    for second in range(30):
        shelf.keep(JOB, logged(VALUES_PER_S), second)
    first = numbers(shelf)
    assert len(first) == ANSWERED_VALUES // VALUES_PER_S
    assert numbers(shelf, first[-1])[0] == first[-1] + 1


def test_a_job_that_is_gone_leaves_room() -> None:
    shelf = ScalarShelf(total_values=8)
    shelf.keep(JOB, logged(8), 0.0)
    shelf.forget(JOB)
    shelf.forget(JOB)
    shelf.keep("research/other", logged(8), 0.0)
    assert numbers(shelf, job="research/other") == [1]
