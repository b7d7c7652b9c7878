import random

import pytest

from holdfast.agent.selftest.judgement import chance_to_catch, judge_runs, promise, repeats_of, repeats_to_catch
from holdfast.api.drill import Spoiler, parse_injection
from holdfast.api.selftest import CheckResult, TestLevel, Verdict

SEEDS = 200
BLANK = CheckResult("product-bf16", "GPU-1", Verdict.UNKNOWN, "", 0.0)


def digests(seed: int, probability: float, repeats: int) -> list[str]:
    """The runs of a device that always computes the same, spoiled now and then."""
    spoiler = Spoiler([parse_injection(f"flip:probability={probability}:seed={seed}")], "product-bf16", "GPU-1")
    found = []
    for _ in range(repeats):
        content = bytearray(64)
        spoiler.spoil(content)
        found.append(content.hex())
    return found


def caught(probability: float, repeats: int) -> int:
    """Of how many devices that are faulty, each in its own way, the fault is seen."""
    runs = (digests(seed, probability, repeats) for seed in range(SEEDS))
    return sum(judge_runs(BLANK, each, "").verdict is Verdict.FAILED for each in runs)


def test_the_light_level_runs_often_enough_for_one_wrong_run_in_fifty() -> None:
    assert repeats_of(TestLevel.LIGHT) == 149
    assert chance_to_catch(1 / 50, 149) >= 0.95 > chance_to_catch(1 / 50, 148)
    assert promise(TestLevel.LIGHT, 149) == "a device that computes wrongly one time in 50 is seen with 95.1%"


def test_the_full_level_runs_often_enough_for_one_wrong_run_in_five_hundred() -> None:
    assert chance_to_catch(1 / 500, repeats_of(TestLevel.FULL)) >= 0.95


@pytest.mark.parametrize("probability", [0.5, 0.02, 0.001])
@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
def test_no_fewer_repeats_would_do(probability: float, confidence: float) -> None:
    repeats = repeats_to_catch(probability, confidence)
    assert chance_to_catch(probability, repeats) >= confidence > chance_to_catch(probability, repeats - 1)


@pytest.mark.parametrize(("probability", "repeats"), [(0.02, 149), (0.02, 50), (0.005, 149)])
def test_the_measured_rate_is_the_promised_one(probability: float, repeats: int) -> None:
    expected = chance_to_catch(probability, repeats)
    three_sigma = 3 * (SEEDS * expected * (1 - expected)) ** 0.5
    assert abs(caught(probability, repeats) - SEEDS * expected) <= three_sigma


def test_a_sound_device_never_fails() -> None:
    assert caught(0.0, 149) == 0


def test_a_fault_is_the_same_whenever_it_is_injected_anew() -> None:
    seed = random.Random(3).randrange(1000)
    assert digests(seed, 0.02, 149) == digests(seed, 0.02, 149) != digests(seed + 1, 0.02, 149)
