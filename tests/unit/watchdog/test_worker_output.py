"""What a watchdog keeps of workers' output, and how little room any number of launchers can take."""

from typing import Any

from holdfast.api.workeroutput import ENTRY_BYTES, WorkerOutput
from holdfast.watchdog.server.workeroutput import ANSWERED_MAX, PROCESSES_KEPT, OutputShelf

JOB = "research/gpt"


def wrote(rank: int = 0, round_: int = 1, tail: bytes = b"x", **fields: Any) -> WorkerOutput:
    known: dict[str, Any] = {"pid": 7, "started_at": 1.0, "ended_at": 2.0, "ended_with": "signal 9"}
    return WorkerOutput(rank=rank, round=round_, tail=tail, omitted_bytes=0, **{**known, **fields})


def keep(
    shelf: OutputShelf, output: WorkerOutput, *, job: str = JOB, member: str = "m1", node: str = "n1"
) -> None:
    shelf.keep(job, member=member, node=node, output=output)


def test_the_newest_processes_of_a_rank_are_told_newest_first_in_whatever_order_they_arrive() -> None:
    shelf = OutputShelf()
    for round_ in (4, 2, 1, 3, 5):
        keep(
            shelf,
            wrote(round_=round_, tail=f"of round {round_}\n".encode(), ended_at=float(round_)),
            member=f"m{round_}",
        )
    told = shelf.of_rank(JOB, 0)
    assert [(each.round, each.member, each.tail) for each in told] == [
        (round_, f"m{round_}", f"of round {round_}\n") for round_ in (5, 4, 3)
    ]
    assert len(told) == PROCESSES_KEPT
    assert shelf.of_rank(JOB, 1) == shelf.of_rank("research/other", 0) == ()


def test_what_a_process_sends_again_takes_the_place_of_what_it_sent() -> None:
    shelf = OutputShelf()
    keep(shelf, wrote(tail=b"runs", ended_with=""))
    keep(shelf, wrote(tail=b"runs\nends\n"))
    assert [(each.tail, each.ended_with) for each in shelf.of_rank(JOB, 0)] == [("runs\nends\n", "signal 9")]


def test_what_is_no_text_is_shown_with_replacement_characters() -> None:
    shelf = OutputShelf()
    keep(shelf, wrote(tail=b"\xff loss \xe2\x82"))
    assert shelf.of_rank(JOB, 0)[0].tail == "\ufffd loss \ufffd"


def test_the_oldest_of_a_job_go_when_it_has_more_than_its_share() -> None:
    shelf = OutputShelf(job_bytes=4 * (ENTRY_BYTES + 100))
    for rank in range(10):
        keep(shelf, wrote(rank, tail=bytes(100)))
    assert [rank for rank in range(10) if shelf.of_rank(JOB, rank)] == [6, 7, 8, 9]


def test_processes_that_wrote_next_to_nothing_are_bounded_too() -> None:
    shelf = OutputShelf(job_bytes=100 * ENTRY_BYTES)
    for rank in range(1000):
        keep(shelf, wrote(rank, tail=b""))
    assert sum(bool(shelf.of_rank(JOB, rank)) for rank in range(1000)) == 100


def test_a_job_that_sends_much_takes_nothing_from_one_that_sends_little() -> None:
    shelf = OutputShelf(total_bytes=10 * (ENTRY_BYTES + 100))
    keep(shelf, wrote(tail=bytes(100)), job="a/quiet")
    for rank in range(50):
        keep(shelf, wrote(rank, tail=bytes(100)), job="b/loud")
    assert shelf.of_rank("a/quiet", 0)
    assert sum(bool(shelf.of_rank("b/loud", rank)) for rank in range(50)) == 9
    shelf.forget("b/loud")
    assert not shelf.of_rank("b/loud", 49)
    for rank in range(1, 10):
        keep(shelf, wrote(rank, tail=bytes(100)), job="a/quiet")
    assert all(shelf.of_rank("a/quiet", rank) for rank in range(10)), "the room was given back"


def test_those_of_a_node_are_told_as_far_as_an_answer_goes() -> None:
    shelf = OutputShelf()
    for rank in range(ANSWERED_MAX + 10):
        keep(shelf, wrote(rank, round_=rank, ended_at=float(rank)), node="n1" if rank else "n2")
    assert [each.rank for each in shelf.on_node(JOB, "n2")] == [0]
    assert [each.rank for each in shelf.on_node(JOB, "n1")] == list(range(ANSWERED_MAX + 9, 9, -1))
    assert shelf.on_node("research/other", "n1") == ()
