"""What of a GPU's details goes to the watchdog."""

from dataclasses import replace

import pytest

from holdfast.agent.reading import GpuDetail, sample_of
from holdfast.api.telemetry import GpuHealth, GpuSample

MUTE = GpuDetail(uuid="GPU-0", index=3, model="NVIDIA H100 80GB HBM3", throttle=1, ecc_corrected=0)


@pytest.mark.parametrize("known", ["temperature_c", "power_w", "utilization_ratio"])
def test_a_gpu_is_healthy_where_it_says_how_it_does(known: str) -> None:
    assert sample_of(replace(MUTE, **{known: 0.0})).health is GpuHealth.HEALTHY


def test_a_gpu_that_says_nothing_of_it_is_unknown_and_what_it_says_is_kept() -> None:
    assert sample_of(MUTE) == GpuSample("GPU-0", 3, GpuHealth.UNKNOWN, throttle=1)
