"""Replica groups that meet in a real store and connect with gloo."""

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
import torch
from patience import patient
from trainer_builders import assignment

from holdfast.api.control import Assignment
from holdfast.api.round import Endpoint, GroupSeat
from holdfast.trainer.across import Across
from holdfast.trainer.group import NotFormed
from holdfast.trainer.store import RoundStore, meet

LIMIT_S = patient(10.0)


@pytest.fixture
def host() -> Iterator[RoundStore]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = Endpoint(*taken.getsockname())
    alone = msgspec.structs.replace(assignment(round=1, rank=0, world_size=1), endpoint=endpoint)
    store = meet(alone, timeout_s=LIMIT_S, check=lambda: None)
    yield store
    store.close()


def part(host: RoundStore, number: int, index: int) -> Assignment:
    endpoint = Endpoint(*host._connection.getpeername())
    seat = GroupSeat(1, index, 1, endpoint, index, 2, meets_in=1)
    whole = assignment(round=number, rank=index, world_size=2)
    return msgspec.structs.replace(whole, endpoint=endpoint, group=seat)


def test_nobody_connects_to_one_that_turned_to_a_newer_round_and_all_meet_there(host: RoundStore) -> None:
    met: list[Across] = []
    looks = iter(range(100))

    def form(number: int, index: int, check: Callable[[], None] = lambda: None) -> Across:
        met.append(across := Across(part(host, number, index), timeout_s=LIMIT_S))
        across.form(check)
        return across

    def turns() -> None:
        if next(looks) > 3:
            raise NotFormed("a newer round is known")

    with ThreadPoolExecutor(2) as pool:
        with pytest.raises(NotFormed, match="newer"):
            pool.submit(form, 2, 0, turns).result(LIMIT_S)
        with pytest.raises(NotFormed, match="has left round 2"):
            pool.submit(form, 2, 1).result(LIMIT_S)
        both = [pool.submit(form, 3, index) for index in range(2)]
        values = torch.ones(2), torch.ones(2)
        begun = [each.result(LIMIT_S).begin_sum(value) for each, value in zip(both, values, strict=True)]
        for each, work in zip(both, begun, strict=True):
            each.result().end_sum(work)
        assert [value.tolist() for value in values] == [[2.0, 2.0]] * 2
    for across in met:
        across.close()
    for across in met:
        across.release()


def test_what_others_ask_of_the_store_here_is_answered_though_a_round_is_aborted(host: RoundStore) -> None:
    """They may be in the next one already."""
    with socket.socket() as other:
        across = Across(part(host, 2, 0), timeout_s=LIMIT_S)
        other.connect(host._connection.getpeername())
        store = RoundStore(other, server=None, timeout_s=LIMIT_S)
        store.introduce(assignment(round=1, rank=1))
        across.abort()
        assert [host.add("asked", 1) for _ in range(3)] == [
            1,
            2,
            3,
        ]  # the store has looked at all connections since
        assert store.add("asked", 1) == 4
        across.close()
        across.release()
