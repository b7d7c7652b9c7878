from pathlib import Path

import pytest
import torch

from holdfast.agent.selftest.arithmetic import Shape, digest, minimodel, numbers, products, raw, values
from holdfast.agent.selftest.device import Device, DeviceKind, cpu_model, devices_of, driver_version
from holdfast.agent.selftest.links import expected_of, judge_domains, judge_rate
from holdfast.agent.selftest.memory import Share, check_memory
from holdfast.agent.selftest.station import Bench
from holdfast.api.drill import Spoiler, parse_injection, read_drill
from holdfast.api.errors import InvalidInput
from holdfast.api.selftest import TOPOLOGY, CheckResult, Verdict
from holdfast.api.telemetry import Unreadable

CPU = Device("cpu", DeviceKind.CPU)
BLANK = CheckResult("memory", "cpu", Verdict.UNKNOWN, "", 0.0)
SMALL = Shape(batch=1, tokens=4, width=8, heads=2, layers=1, vocabulary=8)
IDLE = Spoiler([], "", "")


def bench(*faults: str) -> Bench:
    return Bench(BLANK, Spoiler([parse_injection(fault) for fault in faults], "memory", "cpu"), lambda: None)


def test_the_inputs_are_the_promised_ones_wherever_they_are_made() -> None:
    """Frozen: golden tables of all users depend on it."""
    assert numbers((2, 4), 0).tolist() == [[123, 38, -33, -108], [-45, -52, 1, -32]]
    assert numbers((1, 4), 7).tolist() == [[-93, 38, -105, 40]]


def test_inputs_are_exact_in_every_number_format() -> None:
    given = values((64, 64), 3)
    for dtype in (torch.bfloat16, torch.float16):
        assert torch.equal(given.to(dtype).to(torch.float32), given)
    assert given.abs().max() <= 127 / 128
    assert len(given.unique()) > 200


def test_another_seed_gives_other_inputs() -> None:
    assert not torch.equal(numbers((8, 8), 1), numbers((8, 8), 2))


@pytest.mark.parametrize("check", list(products(CPU, 32, 0)), ids=lambda check: str(check.name))
def test_a_product_is_the_same_in_every_run(check: object) -> None:
    kernel = check.prepare()  # type: ignore[attr-defined]
    assert len({digest(kernel(), IDLE) for _ in range(3)}) == 1


def test_an_int8_product_is_exact() -> None:
    (found,) = next(each for each in products(CPU, 32, 5) if each.name == "product-int8").prepare()()
    left, right = (numbers((32, 32), seed).to(torch.int64) for seed in (5, 6))
    assert torch.equal(found.to(torch.int64), left @ right)


def test_the_model_gives_a_loss_and_a_gradient_of_every_weight() -> None:
    loss, *gradients = minimodel(CPU, SMALL, 0, torch.float32)()
    assert torch.isfinite(loss)
    assert len(gradients) == 5
    assert all(bool(gradient.abs().sum() > 0) for gradient in gradients)


def test_another_seed_changes_the_loss_and_every_gradient() -> None:
    one, other = (minimodel(CPU, SMALL, seed, torch.float32)() for seed in (0, 1))
    assert all(not torch.equal(left, right) for left, right in zip(one, other, strict=True))


def test_one_flipped_bit_changes_the_digest() -> None:
    outputs = minimodel(CPU, SMALL, 0, torch.float32)()
    spoiled = Spoiler([parse_injection("stuck")], "transformer-fp32", "cpu")
    assert digest(outputs, spoiled) != digest(outputs, IDLE) == digest(outputs, IDLE)
    assert len(raw(outputs)) == 4 * sum(each.numel() for each in outputs)


def test_sound_memory_holds_every_pattern_and_the_share_is_said() -> None:
    judged = check_memory(CPU, Share(0.05, 1 << 20, 8), bench())
    assert judged.verdict is Verdict.PASSED
    assert judged.says.startswith("1 MiB of ")


def test_a_word_that_reads_back_wrong_is_named() -> None:
    judged = check_memory(CPU, Share(0.05, 1 << 20, 4), bench("flip:probability=1:seed=3"))
    assert judged.verdict is Verdict.FAILED
    assert "walking one 0: 1 words read back wrong, the first is " in judged.says


@pytest.mark.parametrize(
    ("model", "rate", "verdict"),
    [
        ("NVIDIA H100 80GB HBM3", 2900.0, Verdict.PASSED),
        ("NVIDIA H100 80GB HBM3", 1600.0, Verdict.FAILED),
        ("NVIDIA H200", 4000.0, Verdict.PASSED),
        ("NVIDIA H300 Ultra", 1.0, Verdict.UNKNOWN),
        ("CPU GenuineIntel 6 167 8", 10.0, Verdict.UNKNOWN),
    ],
)
def test_a_rate_is_judged_by_the_data_sheet_of_the_model(model: str, rate: float, verdict: Verdict) -> None:
    assert judge_rate(BLANK, "memory", rate, expected_of(model).memory).verdict is verdict


@pytest.mark.parametrize(
    ("tensor", "largest", "verdict"),
    [
        (8, 8, Verdict.PASSED),
        (4, 4, Verdict.PASSED),
        (2, 8, Verdict.PASSED),
        (8, 4, Verdict.FAILED),
        (3, 8, Verdict.FAILED),
        (2, 1, Verdict.FAILED),
        (8, Unreadable("nvml", "no driver"), Verdict.UNKNOWN),
    ],
)
def test_ranks_that_share_a_domain_must_fit_it(tensor: int, largest: int | Unreadable, verdict: Verdict) -> None:
    judged = judge_domains(BLANK, tensor, largest)
    assert (judged.check, judged.verdict) == (TOPOLOGY, verdict)


def test_what_does_not_fit_is_said() -> None:
    says = judge_domains(BLANK, 8, 4).says
    assert says == "tensor parallel size 8 asked of a 4-GPU NVLink domain"


def test_the_devices_are_those_a_worker_would_see() -> None:
    two = {"CUDA_VISIBLE_DEVICES": "2,3"}
    assert [each.name for each in devices_of(DeviceKind.AUTO, two)] == ["cuda:0", "cuda:1"]
    assert [each.name for each in devices_of(DeviceKind.CPU, two)] == ["cpu"]
    none = {"CUDA_VISIBLE_DEVICES": ""}
    assert [each.kind for each in devices_of(DeviceKind.AUTO, none)] == [DeviceKind.CPU]
    assert [each.kind for each in devices_of(DeviceKind.CUDA, none)] == [DeviceKind.CUDA]
    assert [each.name for each in devices_of(DeviceKind.AUTO, two, ["GPU-1"])] == ["GPU-1"]


def test_a_processor_is_known_by_what_libraries_choose_by() -> None:
    intel = (
        "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nstepping\t: 8\n\nmodel : 1"
    )
    assert cpu_model(intel) == "CPU GenuineIntel 6 143 8"
    assert cpu_model("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n") == "CPU 0x41 0xd40"


def test_the_driver_is_known_by_its_version_or_unknown(tmp_path: Path) -> None:
    file = tmp_path / "version"
    assert driver_version(file) == "?"
    file.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 01:44:30 UTC 2024\n")
    assert driver_version(file) == "550.54.14"


@pytest.mark.parametrize("text", ["flop", "flip:probability=2", "flip:odds=1", "flip:seed=x", ""])
def test_a_fault_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="write flip, stuck or hang"):
        parse_injection(text)


def test_a_drill_that_is_none_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "drill.json"
    file.write_text('{"devises": []}')
    with pytest.raises(InvalidInput, match="it is no drill"):
        read_drill(file)


def test_a_fault_is_confined_to_what_it_names() -> None:
    fault = parse_injection("stuck:device=GPU-2:check=memory")
    assert not Spoiler([fault], "memory", "GPU-2").is_idle
    assert Spoiler([fault], "memory", "GPU-1").is_idle
    assert Spoiler([fault], "product-fp32", "GPU-2").is_idle
