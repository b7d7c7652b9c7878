"""What a dcgm-exporter serves, as GPUs."""

import contextlib
from dataclasses import astuple

import msgspec
import pytest
from dcgm_pages import FIRST, NEWER, UUID, page, xid_line
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.agent.reading import sample_of
from holdfast.agent.sensors.dcgm_text import (
    PREFIX,
    XID_GAUGES,
    XID_TOTAL,
    Filling,
    NotDcgm,
    XidGauge,
    filling_of,
    scrape_of,
)
from holdfast.api.telemetry import GpuHealth, NodeReport
from holdfast.api.xid import RecoveryAction

METRICS = (
    *FIRST,
    *NEWER,
    *XID_GAUGES,
    XID_TOTAL,
    *(PREFIX + name for name in ("CLOCKS_EVENT_REASONS", "GPU_RECOVERY_ACTION", "THERMAL_VIOLATION", "FB_TOTAL")),
)


def test_both_generations_of_names_give_the_same_gpus() -> None:
    first, newer = scrape_of(page(FIRST)), scrape_of(page(NEWER, host_label="hostname"))
    assert first.details == newer.details
    gpu = first.details[1]
    assert (gpu.uuid, gpu.index, gpu.model) == (UUID.format(1), 1, "NVIDIA H100 80GB HBM3")
    assert gpu.pci_bus_id == "00000000:01:00.0"
    assert (gpu.sm_clock_mhz, gpu.memory_clock_mhz, gpu.temperature_c) == (1980, 2619, 61.0)
    assert (gpu.energy_j, gpu.utilization_ratio, gpu.memory_used_bytes) == (5000.0, 0.97, 2**30)
    assert (gpu.pcie_replays, gpu.remapped_rows_uncorrectable, gpu.row_remap_failed) == (3, 1, False)
    assert gpu.row_remap_pending is None


def test_a_sample_that_travels_is_healthy_as_far_as_the_exporter_knows() -> None:
    sample = sample_of(scrape_of(page(FIRST)).details[0])
    assert (sample.health, sample.temperature_c, sample.power_w) == (GpuHealth.HEALTHY, 61.0, 512.5)
    (unread,) = scrape_of(xid_line("DCGM_FI_DEV_XID_ERRORS", 0, 79)).details
    assert sample_of(unread).health is GpuHealth.UNKNOWN


@pytest.mark.parametrize(
    ("metric", "filling"),
    [
        pytest.param("DCGM_FI_DEV_THERMAL_VIOLATION", Filling("thermal_throttled_s", 1e-9), id="nanoseconds"),
        pytest.param(
            "DCGM_FI_DEV_GPU_THERMAL_THROTTLE_SECONDS_TOTAL", Filling("thermal_throttled_s"), id="seconds"
        ),
        pytest.param("DCGM_FI_DEV_SM_CLOCK_HERTZ", Filling("sm_clock_mhz", 1e-6), id="an old name in hertz"),
        pytest.param("DCGM_FI_DEV_FB_TOTAL_BYTES", Filling("memory_total_bytes", 1.0), id="an old name in bytes"),
        pytest.param("DCGM_FI_DEV_GPU_TEMP_RATIO", None, id="a suffix of another unit"),
        pytest.param("DCGM_FI_PROF_GR_ENGINE_ACTIVE", None, id="not of the device"),
        pytest.param("DCGM_FI_DEV_ENC_UTIL", None, id="of no use here"),
    ],
)
def test_a_metric_fills_a_detail_in_its_unit(metric: str, filling: Filling | None) -> None:
    assert filling_of(metric) == filling


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("9223372036854775794", id="blank of 64 bits"),
        pytest.param("140737488355330", id="blank of a float"),
        pytest.param("2147483632", id="blank of 32 bits"),
        pytest.param("NaN", id="not a number"),
        pytest.param("+Inf", id="infinite"),
        pytest.param("1e25", id="larger than any counter"),
        pytest.param("9" * 400, id="a whole number larger than any float"),
    ],
)
def test_no_value_is_unknown(value: str) -> None:
    text = xid_line("DCGM_FI_DEV_GPU_TEMP", 0, 1).replace("} 1", "} " + value)
    assert scrape_of(text).details[0].temperature_c is None


def test_what_is_too_large_in_its_own_unit_is_unknown() -> None:
    text = xid_line("DCGM_FI_DEV_FB_USED", 0, 9 * 10**17) + xid_line("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", 0, 10**25)
    (gpu,) = scrape_of(text).details
    assert (gpu.memory_used_bytes, gpu.throttle) == (None, None)


def test_labels_that_are_no_numbers_of_anything_are_passed_over() -> None:
    absurd = "9" * 5000
    text = xid_line("DCGM_FI_DEV_GPU_TEMP", 0, 50).replace('gpu="0"', f'gpu="{absurd}"')
    scrape = scrape_of(text + xid_line("DCGM_EXP_XID_ERRORS_TOTAL", 0, 2, f',xid="{absurd}"'))
    assert ([gpu.index for gpu in scrape.details], scrape.xids[UUID.format(0)].totals) == ([-1], {})


def test_a_percentage_under_the_name_of_a_ratio_is_unknown() -> None:
    assert scrape_of(xid_line("DCGM_FI_DEV_GPU_UTIL_RATIO", 0, 97)).details[0].utilization_ratio is None


def test_a_recovery_action_is_the_drivers_also_one_newer_than_the_table() -> None:
    text = xid_line("DCGM_FI_DEV_GPU_RECOVERY_ACTION", 0, 2) + xid_line("DCGM_FI_DEV_GPU_RECOVERY_ACTION", 1, 99)
    assert [gpu.recovery_action for gpu in scrape_of(text).details] == [RecoveryAction.NODE_REBOOT, 99]


def test_errors_are_the_last_one_and_totals() -> None:
    text = (
        xid_line("DCGM_FI_DEV_XID_ERRORS", 0, 79, ',err_code="79",err_msg="fallen off"')
        + xid_line("DCGM_EXP_XID_ERRORS_TOTAL", 0, 2, ',xid="31"')
        + xid_line("DCGM_FI_DEV_XID_ERRORS", 0, 31, ',pod="another"')
        + xid_line("DCGM_EXP_XID_ERRORS_TOTAL", 0, 1, ',xid="what"')
    )
    shown = scrape_of(text).xids[UUID.format(0)]
    assert (shown.last, shown.text, shown.totals) == (79, "fallen off", {31: 2})


def test_gpus_beyond_any_machine_are_not_kept() -> None:
    text = "".join(f'DCGM_FI_DEV_GPU_TEMP{{gpu="{n}",UUID="GPU-{n}"}} 50\n' for n in range(200))
    assert len(scrape_of(text).details) == 64


@pytest.mark.parametrize("text", ["", "<html>", "up 1\n", 'DCGM_FI_DEV_GPU_TEMP{gpu="0" 5\n', "DCGM_X{} five\n"])
def test_what_is_not_an_exporters_page_is_said_to_be_none(text: str) -> None:
    with pytest.raises(NotDcgm):
        scrape_of(text)


@given(st.text(alphabet=st.sampled_from('DCGM_FI{}="\\,. 0159eE+-#\nUuidgpTYPE'), max_size=200))
def test_any_text_is_a_page_or_none(text: str) -> None:
    with contextlib.suppress(NotDcgm):
        scrape_of(f"DCGM_FI_DEV_GPU_TEMP{text}\nDCGM_FI_DEV_XID_ERRORS{{{text}}} {text}\n")


@given(
    value=st.floats().map(repr) | st.integers().map(str) | st.text("0123456789eE+-.NaInf", max_size=400),
    label=st.text("0123456789\u0663", max_size=20),
)
@example(value="1e25", label="0")
@example(value="1e305", label="0")
@example(value="9" * 400, label="9" * 5000)
def test_whatever_a_page_says_can_be_reported(value: str, label: str) -> None:
    labels = f'{{gpu="{label}",UUID="GPU-0",xid="{label}"}} {value}'
    with contextlib.suppress(NotDcgm):
        scrape = scrape_of("".join(f"{metric}{labels}\n" for metric in METRICS))
        news = XidGauge()
        assert news.observe({}, 0.0) == ()
        report = NodeReport("n0", "a", 1, gpus=tuple(map(sample_of, scrape.details)))
        events = news.observe(scrape.xids, 1.0)
        sent = msgspec.msgpack.encode(msgspec.structs.replace(report, events=events))
        assert msgspec.msgpack.decode(sent, type=NodeReport).events == events
        for detail in scrape.details:
            assert all(abs(each) < 2**63 for each in astuple(detail) if isinstance(each, int | float))
