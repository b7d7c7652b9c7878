"""GPUs as data sheets have them, yours beside them, and how networks join them."""

from pathlib import Path

import pytest

from holdfast.api.errors import InvalidInput
from holdfast.planner.cluster import Cluster, reach_of
from holdfast.planner.gpu import GPUS, gpu_of
from holdfast.planner.layout import Layout, Training, misfits
from holdfast.planner.model import Model
from holdfast.planner.questionfile import question_of

H100 = GPUS["H100-80GB"]
# What the makers' pages say of a whole machine, in 10^12 FLOP/s (dense), 10^9 bytes and bytes/s in both
# directions. Sources: https://www.nvidia.com/en-us/data-center/dgx-b200/ (72 x 10^15 in FP8 with sparsity, 1,440
# GB, 64 TB/s, 14.4 TB/s of NVLink), https://www.nvidia.com/en-us/data-center/gb200-nvl72/ (720 x 10^15, 13.4 TB,
# 576 TB/s, 130 TB/s), https://www.nvidia.com/en-us/data-center/dgx-h100/ (32 x 10^15, 640 GB, 7.2 TB/s of
# NVLink)
MACHINES = [
    pytest.param("B200", 8, 72_000 / 2, 1440, 64_000, 14_400, id="DGX B200"),
    pytest.param("GB200", 72, 720_000 / 2, 13_400, 576_000, 130_000, id="GB200 NVL72"),
    pytest.param("H100", 8, 32_000 / 2, 640, 8 * 3350, 7_200, id="DGX H100"),
]


@pytest.mark.parametrize(("name", "count", "fp8", "memory", "rate", "nvlink"), MACHINES)
def test_as_many_as_a_machine_has_make_up_the_machine(
    name: str, count: int, fp8: float, memory: float, rate: float, nvlink: float
) -> None:
    gpu = gpu_of(name, "cluster.gpu")
    assert count * gpu.fp8 / 1e12 == pytest.approx(fp8, rel=0.02)
    assert count * gpu.memory / 1e9 == pytest.approx(memory, rel=0.02)
    assert count * gpu.memory_rate / 1e9 == pytest.approx(rate, rel=0.02)
    assert count * gpu.nvlink * 2 / 1e9 == pytest.approx(nvlink, rel=0.02)


@pytest.mark.parametrize("name", GPUS)
def test_each_is_found_by_its_name_and_says_where_its_numbers_are_from(name: str) -> None:
    gpu = gpu_of(name.lower(), "cluster.gpu")
    assert gpu is GPUS[name]
    assert gpu.source.startswith("https://")
    assert f"{round(gpu.memory / 1e9)}GB" in gpu.name
    assert gpu.fp8 == 0 or gpu.fp8 == pytest.approx(2 * gpu.bf16, rel=0.02)
    assert 50 < gpu.balance < 500


def test_the_beginning_of_one_name_is_not_taken_for_another() -> None:
    with pytest.raises(InvalidInput, match=r"A100-40GB, A100-80GB.*or the numbers of yours"):
        gpu_of("A100", "cluster.gpu")


def test_yours_stands_beside_the_catalogue() -> None:
    own = {"name": "B300", "bf16": 2.5e15, "memory": 279e9, "memory_rate": 8e12, "nvlink": 9e11}
    given = {
        "model": {"layers": 4, "hidden": 64, "heads": 4, "ffn": 256, "vocab": 1000},
        "cluster": {"gpu": own, "gpus": 8},
        "training": {"sequence": 128, "batch": 8},
    }
    assert question_of(given, Path()).cluster.gpu.balance == pytest.approx(312.5)
    with pytest.raises(InvalidInput, match=r"cluster.gpu.memory"):
        question_of({**given, "cluster": {"gpu": {**own, "memory": 0}, "gpus": 8}}, Path())


def test_nvlink_joins_a_node_or_a_rack() -> None:
    assert Cluster(H100, 64).domain == 8
    assert Cluster(H100, 64, per_node=4).domain == 4
    assert Cluster(GPUS["L40S-48GB"], 64).domain == 1
    rack = Cluster(GPUS["GB200-186GB"], 144, per_node=4)
    assert rack.domain == 72
    assert reach_of(rack, (16, 1)).rate == 900e9
    assert reach_of(rack, (18, 8)).near == 9
    model = Model("it", layers=4, hidden=1024, heads=16, ffn=4096, vocab=1000)
    wide = Layout(tensor=16, data=9)
    assert list(misfits(wide, model, rack, Training(sequence=128, batch=9))) == []


def test_a_ring_leaves_each_pod_once_and_an_exchange_leaves_it_with_most() -> None:
    # Source: https://arxiv.org/abs/2407.21783 (section 3.3.1: pods of 3,072 GPUs, one seventh of their network
    # beyond)
    llama = Cluster(H100, 16384, pod=3072, oversubscription=7.0)
    flat = Cluster(H100, 16384)
    assert reach_of(llama, (128, 128)).rate == reach_of(flat, (128, 128)).rate, "128 rings fit what leaves a pod"
    assert reach_of(llama, (16, 8)) == reach_of(flat, (16, 8)), "it stays in its pod"
    narrow = Cluster(H100, 16384, pod=128, oversubscription=7.0)
    assert reach_of(narrow, (128, 128)).rate == pytest.approx(50e9 / 7)
    assert reach_of(narrow, (256, 1)).port == pytest.approx(50e9 / 7)
    with pytest.raises(InvalidInput, match=r"cluster.oversubscription"):
        Cluster(H100, 64, pod=8, oversubscription=0.5)


def test_of_a_mesh_two_gpus_have_one_link() -> None:
    # Source: https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html (7 links, 64 GB/s each way)
    mesh = Cluster(GPUS["MI300X-192GB"], 64)
    rates = [reach_of(mesh, (size, 1)).rate for size in (2, 4, 8)]
    assert rates == [pytest.approx(64e9), pytest.approx(3 * 64e9), pytest.approx(7 * 64e9)]
    assert reach_of(mesh, (16, 4)).rate == pytest.approx(64e9), "two of each node, by one link between them"
    assert [reach_of(Cluster(H100, 64), (size, 1)).rate for size in (2, 8)] == [450e9, 450e9]
