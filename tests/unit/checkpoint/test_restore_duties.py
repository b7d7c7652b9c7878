import random
from collections import Counter
from collections.abc import Iterable, Sequence

import pytest

from holdfast.checkpoint.restore.duties import Demand, Duties, numbers, runs, share_out

SLOTS = 4


def demand(
    host: str, blocks: Iterable[int], *, bulk: Iterable[int] | None = None, smalls: Iterable[int] = ()
) -> Demand:
    blocks = list(blocks)
    return Demand(host, runs(blocks), runs(blocks if bulk is None else bulk), runs(smalls))


def shared(*demands: Demand, blocks: int, smalls: Sequence[Sequence[int]] = ()) -> Duties:
    return share_out(demands, blocks=blocks, smalls=smalls, slots=SLOTS)


def test_numbers_survive_as_runs() -> None:
    assert runs([7, 3, 4, 9, 5]) == ((3, 3), (7, 1), (9, 1))
    assert list(numbers(((3, 3), (7, 1)))) == [3, 4, 5, 7]


def test_what_one_rank_needs_it_reads_and_what_nobody_needs_is_looked_at() -> None:
    duties = shared(demand("a", [0, 1]), demand("b", [2]), blocks=5)
    assert duties.readers[:3] == (0, 0, 1)
    assert sorted(duties.alone(0) + duties.alone(1)) == [0, 1, 2, 3, 4]
    assert duties.waves == ()


def test_replicas_on_one_host_read_each_block_once_and_share_the_work() -> None:
    duties = shared(*[demand("a", range(40))] * 4, blocks=40)
    carriages = [each for wave in duties.waves for each in wave]
    assert [each.block for each in carriages] == list(range(40))
    assert Counter(each.reader for each in carriages) == {0: 10, 1: 10, 2: 10, 3: 10}
    assert all(each.carriers == (each.reader,) for each in carriages)


def test_replicas_on_two_hosts_read_once_and_send() -> None:
    duties = shared(*[demand(host, range(40)) for host in "aabb"], blocks=40)
    carriages = [each for wave in duties.waves for each in wave]
    assert Counter(each.reader for each in carriages).keys() == {0, 1, 2, 3}
    for each in carriages:
        (receiver,) = each.receivers
        assert each.reader // 2 != receiver // 2
        assert each.rereaders == ()


def test_a_host_that_needs_little_of_a_block_reads_it_again_itself() -> None:
    duties = shared(demand("a", [0]), demand("b", [0], bulk=[]), blocks=1)
    ((carriage,),) = duties.waves
    assert (carriage.reader, carriage.receivers, carriage.rereaders) == (0, (), (1,))


def test_what_is_small_and_common_makes_no_block_a_common_one() -> None:
    smalls = [(0,), (1,), (0, 1), (2,)]
    everything = {"smalls": range(3)}
    duties = shared(demand("a", [0], **everything), demand("b", [1], **everything), blocks=3, smalls=smalls)
    assert duties.waves == ()
    assert duties.common == (0, 1, 2)
    assert duties.readers[:2] == (0, 1)


def test_what_is_small_and_needed_by_one_rank_comes_with_its_block() -> None:
    duties = shared(demand("a", [], smalls=[0]), demand("a", []), demand("a", []), blocks=2, smalls=[(1,)])
    assert duties.common == ()
    assert duties.readers[1] == 0


@pytest.mark.parametrize("seed", range(30))
def test_in_any_world_every_block_is_read_and_no_wave_needs_more_memory_than_there_is(seed: int) -> None:
    source = random.Random(seed)
    blocks = 60
    demands = [
        demand(
            source.choice("abc"),
            needed := source.sample(range(blocks), source.randrange(blocks)),
            bulk=source.sample(needed, len(needed) // 2),
        )
        for _ in range(source.randint(1, 6))
    ]
    duties = shared(*demands, blocks=blocks)
    alone = [block for rank in range(len(demands)) for block in duties.alone(rank)]
    common = [each.block for wave in duties.waves for each in wave]
    assert sorted(alone + common) == list(range(blocks))
    for wave in duties.waves:
        assert max(Counter(rank for each in wave for rank in each.carriers).values()) <= SLOTS
    for each in (each for wave in duties.waves for each in wave):
        needers = {rank for rank, one in enumerate(demands) if each.block in numbers(one.blocks)}
        assert len(needers) > 1
        assert needers.issuperset(each.carriers)
        assert sorted(demands[rank].host for rank in each.carriers) == sorted(
            {demands[rank].host for rank in needers}
        )
