"""Where runs are lived through: here, and in clusters, of which these have what is called of them."""

import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import pytest
from smallfleet import small_live

from holdfast.api.errors import InvalidInput, Unavailable
from holdfast.api.policy import Policy
from holdfast.cli.simulation.livedrun import Cores, DaskCluster, RayCluster, gathered, where
from holdfast.simulator.fault import FaultRate, Symptom
from holdfast.simulator.scenario import Fleet, Scenario

SCENARIO = Scenario(
    Policy(job="default/x", nodes_min=1, nodes_max=10),
    Fleet(10),
    (FaultRate("broken", Symptom.NODE_LOST, rate=10.0),),
    days=10.0,
)


class Future:
    """What a cluster gives for a call; the newest is done first."""

    def __init__(self, call: Callable[[], Any], number: int) -> None:
        self._call = call
        self.key = f"call-{number}"

    def result(self) -> Any:
        return self._call()


class Client:
    """A scheduler, as far as it is called."""

    cancelled: Sequence[Future] = ()
    asked: str = ""

    def __init__(self, address: str, timeout: str) -> None:
        if "gone" in address:
            raise OSError("connection refused")
        Client.asked, self._count = address, 0

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def submit(self, function: Callable[..., Any], *arguments: object, pure: bool) -> Future:
        assert not pure  # the same run twice is two runs
        self._count += 1
        return Future(lambda: function(*arguments), self._count)

    def cancel(self, futures: Sequence[Future]) -> None:
        Client.cancelled = futures


@pytest.fixture
def dask(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("distributed")
    module.Client = Client  # type: ignore[attr-defined]
    module.as_completed = lambda futures: iter(reversed(futures))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "distributed", module)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module: Any = ModuleType("ray")
    module.shut = 0

    class Remote:
        def __init__(self, function: Callable[..., Any]) -> None:
            self._function = function
            self._count = 0

        def remote(self, *arguments: object) -> Future:
            self._count += 1
            return Future(lambda: self._function(*arguments), self._count)

    def init(address: str, log_to_driver: bool) -> None:
        if "gone" in address:
            raise ConnectionError("nobody there")
        module.asked = address

    def shutdown() -> None:
        module.shut += 1

    module.init, module.shutdown, module.remote = init, shutdown, Remote
    module.wait = lambda waiting: (waiting[-1:], waiting[:-1])
    module.get = lambda each: each.result()
    monkeypatch.setitem(sys.modules, "ray", module)
    return module


@pytest.mark.usefixtures("dask", "ray")
@pytest.mark.parametrize("place", [Cores(1), DaskCluster("tcp://s:8786"), RayCluster("ray://h:10001")])
def test_the_same_runs_come_out_of_every_place(place: Any) -> None:
    other = Scenario(SCENARIO.policy, SCENARIO.fleet, SCENARIO.faults, days=20.0)
    found = gathered(place, small_live, [SCENARIO, other], range(5, 9))
    assert found.is_whole
    assert found.outcomes == tuple(
        tuple(small_live(each, seed) for seed in range(5, 9)) for each in (SCENARIO, other)
    )


@pytest.mark.usefixtures("dask")
def test_what_is_broken_off_is_cancelled_in_the_cluster() -> None:
    calls = 0

    def second_is_interrupted(scenario: Scenario, seed: int) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return small_live(scenario, seed)

    found = gathered(DaskCluster("tcp://s:1"), second_is_interrupted, [SCENARIO], range(4))
    assert [each.seed for each in found.outcomes[0]] == [3]
    assert not found.is_whole
    assert len(Client.cancelled) == 4


def test_ray_is_left_also_when_it_is_broken_off(ray: Any) -> None:
    def interrupted(scenario: Scenario, seed: int) -> Any:
        raise KeyboardInterrupt

    assert gathered(RayCluster("auto"), interrupted, [SCENARIO], range(2)).outcomes == ((),)
    assert (ray.asked, ray.shut) == ("auto", 1)


@pytest.mark.usefixtures("dask", "ray")
@pytest.mark.parametrize("place", [DaskCluster("tcp://gone:8786"), RayCluster("ray://gone:10001")])
def test_a_cluster_that_is_not_there_is_told(place: Any) -> None:
    with pytest.raises(Unavailable, match=r"answers at .*gone"):
        gathered(place, small_live, [SCENARIO], [1])


@pytest.mark.parametrize(
    ("place", "name"), [(DaskCluster("tcp://s:1"), "distributed"), (RayCluster("auto"), "ray")]
)
def test_what_is_not_installed_is_told(place: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(Unavailable, match=f"pip install .*{name}"):
        gathered(place, small_live, [SCENARIO], [1])


@pytest.mark.parametrize(
    ("address", "kind"),
    [("dask://h:8786", DaskCluster), ("ray://h:10001", RayCluster), ("ray://auto", RayCluster)],
)
def test_an_address_names_its_cluster(address: str, kind: type) -> None:
    assert isinstance(where(address, None), kind)


@pytest.mark.parametrize("address", ["", "dask://", "h:8786", "tcp://h:8786", "ray"])
def test_an_odd_address_is_refused(address: str) -> None:
    with pytest.raises(InvalidInput, match="--cluster"):
        where(address, None)
    with pytest.raises(InvalidInput, match="--workers"):
        where("ray://auto", 4)


def test_here_all_cores_are_used_unless_it_is_said() -> None:
    assert isinstance(where(None, None), Cores)
    assert isinstance(where(None, 3), Cores)


def test_seeds_come_before_policies_so_that_what_is_broken_off_can_be_compared() -> None:
    order: list[tuple[int, int]] = []

    def watched(live: object, tasks: Sequence[Any]) -> Iterator[Any]:
        order.extend((each.seed, each.policy) for each in tasks)
        return iter(())

    gathered(watched, small_live, [SCENARIO, SCENARIO], [7, 8])
    assert order == [(7, 0), (7, 1), (8, 0), (8, 1)]
