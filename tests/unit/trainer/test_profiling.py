"""What a trace says of collectives: which, how long, and how much of it nothing hides."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from holdfast.api.profile import ProfileTold, ProfileWanted
from holdfast.trainer.profiling import Profiling, Span, exposed_us, merged, spans_of, summary_of


def span(start: float, end: float, name: str = "all_reduce", shape: str = "[4]") -> Span:
    return Span(name, shape, start, end)


@pytest.mark.parametrize(
    ("spans", "busy", "exposed"),
    [
        ([(0, 10)], [], 10),
        ([(0, 10)], [(0, 10)], 0),
        ([(0, 10)], [(2, 4), (6, 7)], 7),
        ([(0, 10), (5, 15)], [(8, 20)], 8),
        ([(0, 10), (20, 30)], [(5, 25)], 10),
        ([(0, 1), (2, 3), (4, 5)], [(0, 5)], 0),
    ],
)
def test_what_lies_beside_no_computing_is_exposed(
    spans: list[tuple[float, float]], busy: list[tuple[float, float]], exposed: float
) -> None:
    assert exposed_us([span(*each) for each in spans], merged(busy)) == exposed


def test_the_longest_kind_comes_first_with_its_size_and_what_is_not_hidden() -> None:
    collectives = [span(0, 1000), span(2000, 3000), span(4000, 9000, "all_gather", "[512]")]
    lines = summary_of(collectives, [span(4000, 8000, "aten::mm")], 2)
    assert lines == (
        "2 steps in 9 ms: 7 ms of collectives, 3 ms of it not hidden behind computing (33% of the time)",
        "all_gather of [512]: 1 times, 5 ms, 1 ms not hidden",
        "all_reduce of [4]: 2 times, 2 ms, 2 ms not hidden",
    )


def test_many_kinds_end_in_a_count_and_none_is_said() -> None:
    many = [span(at, at + 1, shape=f"[{at}]") for at in range(40)]
    assert summary_of(many, [], 1)[-1] == "24 other kinds of collectives took less"
    assert summary_of([], [span(0, 1)], 3) == ("no collective in 3 steps",)


@dataclass
class Event:
    """As torch's, as far as it is read."""

    name: str
    device: str = "CPU"
    input_shapes: list[Any] = field(default_factory=list)

    @property
    def device_type(self) -> Any:
        return type("Type", (), {"name": self.device})

    @property
    def time_range(self) -> Any:
        return type("Range", (), {"start": 1.0, "end": 2.0})


def test_on_a_device_its_kernels_count_and_on_the_host_operators() -> None:
    device = [
        Event("ncclDevKernel_AllReduce(int)", "CUDA"),
        Event("gemm", "CUDA"),
        Event("aten::mm"),
        Event("nccl:x"),
    ]
    collectives, computing = spans_of(device)
    assert [each.name for each in collectives] == ["ncclDevKernel_AllReduce"]
    assert [each.name for each in computing] == ["gemm"]
    collectives, computing = spans_of(
        [Event("gloo:all_reduce", input_shapes=[[4], []]), Event("aten::mm"), Event("x")]
    )
    assert collectives == [Span("all_reduce", "[4]", 1.0, 2.0)]
    assert [each.name for each in computing] == ["aten::mm"]


def test_a_profiler_that_cannot_run_is_told_of_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise RuntimeError("the profiler is in use")

    monkeypatch.setattr("torch.profiler.profile", refuse)
    told: list[ProfileTold] = []
    assert Profiling(ProfileWanted(3, 1, (0,), 5), 2, tmp_path, told.append).completed()
    assert told == [ProfileTold(3, 1, 2, problem="it could not be profiled: the profiler is in use")]
