"""The self-test as a program: real processes, real arithmetic on the CPU."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from fake_nvml import FakeNvml, gpu_uuid
from patience import patient

from holdfast.agent.selftest.device import Device, DeviceKind
from holdfast.agent.selftest.supervision import Restore, kept_as_found
from holdfast.api.selftest import CheckResult, Tested, Verdict

PATIENCE_S = patient(100)


def selftest(*arguments: str, environment: Mapping[str, str] | None = None) -> tuple[int, Tested]:
    """Its exit code and what it says, with few repeats unless asked otherwise."""
    given = arguments if "--repeat" in arguments else ("--repeat", "3", *arguments)
    ended = subprocess.run(
        [sys.executable, "-m", "holdfast.agent.selftest", "--device", "cpu", "--json", *given],
        stdout=subprocess.PIPE,
        timeout=PATIENCE_S,
        check=False,
        env=environment,
    )
    return ended.returncode, msgspec.json.decode(ended.stdout, type=Tested)


def probe(*arguments: str) -> tuple[int, Tested]:
    """As `selftest`, through the command that people give."""
    command = [sys.executable, "-m", "holdfast.cli", "probe", "--device", "cpu", "--repeat", "3", "-o", "json"]
    ended = subprocess.run([*command, *arguments], stdout=subprocess.PIPE, timeout=PATIENCE_S, check=False)
    return ended.returncode, msgspec.json.decode(ended.stdout, type=Tested)


def of(tested: Tested, verdict: Verdict) -> list[CheckResult]:
    return [each for each in tested.checks if each.verdict is verdict]


def test_a_device_wrong_one_time_in_fifty_is_caught_by_the_light_level() -> None:
    code, tested = selftest("--repeat", "149", "--inject", "flip:probability=0.02:seed=7:check=transformer-bf16")
    assert (code, tested.verdict) == (1, Verdict.FAILED)
    assert [each.check for each in of(tested, Verdict.FAILED)] == ["transformer-bf16"]


def test_two_processes_give_the_same_digests_and_a_fault_in_every_run_is_seen_by_the_golden_table(
    tmp_path: Path,
) -> None:
    golden = tmp_path / "golden.json"
    code, tested = probe("--record", str(golden), "--tensor", "8")
    assert code == 0
    # The CPU is in no NVLink domain, driver or not, which spoils nothing that is exact.
    assert {each.check for each in of(tested, Verdict.UNKNOWN)} == {"bandwidth-device", "topology"}
    code, tested = probe("--golden", str(golden), "--inject", "stuck:check=product-fp16")
    assert code == 1
    assert [each.check for each in of(tested, Verdict.FAILED)] == ["product-fp16"]
    equal = [each.check for each in tested.checks if each.says.endswith("equal to the golden result")]
    assert {"product-fp32", "product-bf16", "product-int8", "transformer-fp32", "transformer-bf16"} == set(equal)


def test_of_three_like_devices_the_one_that_is_always_wrong_is_outvoted(tmp_path: Path) -> None:
    drill = tmp_path / "drill.json"
    faults = {"devices": ["GPU-0", "GPU-1", "GPU-2"], "inject": ["stuck:device=GPU-1:check=product-bf16"]}
    drill.write_text(json.dumps(faults))
    code, tested = selftest("--drill", str(drill))
    assert code == 1
    (failed,) = of(tested, Verdict.FAILED)
    assert (failed.device, failed.check) == ("GPU-1", "product-bf16")
    (together,) = [each for each in tested.checks if each.check == "all-reduce"]
    assert together.verdict is Verdict.PASSED
    assert together.says == "3 sums exact among 2"  # without the device that is known to be wrong


def test_a_check_that_hangs_is_killed_and_fails_its_device_alone(tmp_path: Path) -> None:
    drill = tmp_path / "drill.json"
    faults = {"devices": ["GPU-0", "GPU-1"], "inject": ["hang:device=GPU-1:check=product-int8"]}
    drill.write_text(json.dumps(faults))
    code, tested = selftest("--drill", str(drill), "--check-timeout", "10")
    assert code == 1
    (failed,) = of(tested, Verdict.FAILED)
    assert (failed.device, failed.check, failed.says) == ("GPU-1", "product-int8", "did not return within 10 s")
    behind = {each.check for each in of(tested, Verdict.UNKNOWN) if each.device == "GPU-1"}
    assert behind == {"transformer-fp32", "transformer-bf16", "memory"}
    assert [each.device for each in tested.checks if each.check == "bandwidth-device"] == ["GPU-0"]


def test_eight_ranks_asked_of_a_domain_of_four_gpus_fail_with_that_sentence(tmp_path: Path) -> None:
    machine = FakeNvml(tmp_path)  # all eight of its GPUs are in one domain; four of them are this member's
    drill = tmp_path / "drill.json"
    drill.write_text(json.dumps({"devices": [gpu_uuid(index) for index in range(4)]}))
    given = ("--drill", str(drill), "--tensor", "8", "--repeat", "1")
    code, tested = selftest(*given, environment=machine.environment())
    (failed,) = of(tested, Verdict.FAILED)
    assert (code, failed.check, failed.device) == (1, "topology", "node")
    assert failed.says == "tensor parallel size 8 asked of a 4-GPU NVLink domain"


@pytest.mark.parametrize("stranger", ["cuda:0", "MIG-5c89d62b-0000-4000-8000-000000000000", "cpu"])
def test_a_device_that_the_driver_cannot_name_leaves_the_domains_unknown(tmp_path: Path, stranger: str) -> None:
    machine = FakeNvml(tmp_path)
    drill = tmp_path / "drill.json"
    drill.write_text(json.dumps({"devices": [gpu_uuid(0), stranger]}))
    given = ("--drill", str(drill), "--tensor", "2", "--repeat", "1")
    code, tested = selftest(*given, environment=machine.environment())
    (topology,) = [each for each in tested.checks if each.check == "topology"]
    assert (code, topology.verdict) == (0, Verdict.UNKNOWN)
    assert topology.says.endswith(f"the driver knows no GPU by the name of {stranger}")


def test_probe_tells_it_as_a_table_and_its_exit_code() -> None:
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "holdfast.cli",
            "probe",
            *["--device", "cpu", "--level", "light", "--repeat", "2", "--seed", "5", "--inject", "stuck"],
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    lines = ended.stdout.splitlines()
    assert lines[0].split() == ["VERDICT", "CHECK", "DEVICE", "TOOK", "SAYS"]
    # Every run is wrong in the same way: without anybody to compare with only memory and sums can tell.
    assert [line.split()[:2] for line in lines if line.startswith("Failed  ")] == [["Failed", "memory"]]
    assert ended.returncode == 1


def test_an_answer_that_cannot_be_written_down_blames_no_device(tmp_path: Path) -> None:
    result = str(tmp_path / "gone" / "result")
    ended = subprocess.run(
        [sys.executable, "-m", "holdfast.agent.selftest", "--device=cpu", "--repeat=1", "--result", result],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (3, "")
    assert ended.stderr.startswith("holdfast selftest: ")
    assert "No such file or directory" in ended.stderr


@pytest.mark.parametrize("end", ["in order", "killed"])
def test_what_a_gpu_was_set_to_is_put_back_even_when_the_test_is_killed(tmp_path: Path, end: str) -> None:
    setting, back = tmp_path / "power", tmp_path / "back"
    setting.write_text("700")

    def record() -> Restore:
        found = setting.read_text()
        return lambda: back.write_text(found) and None

    child = os.fork()
    if child == 0:
        os.setsid()
        with kept_as_found((Device("cuda:0", DeviceKind.CUDA),), record):
            setting.write_text("300")
            if end == "killed":
                os.killpg(0, signal.SIGKILL)
        os._exit(0)
    os.waitpid(child, 0)
    give_up = time.monotonic() + PATIENCE_S
    while not back.exists() or not back.read_text():
        assert time.monotonic() < give_up
        time.sleep(0.01)
    assert back.read_text() == "700"
