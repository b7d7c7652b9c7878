"""The same GPU as the two generations of dcgm-exporter tell of it, and what the recording rules make of both."""

from typing import Any

# The same GPU as either generation of dcgm-exporter tells of it: (older name, value, newer name, value).
RENAMED = {
    "holdfast:gpu_temperature_celsius": ("DCGM_FI_DEV_GPU_TEMP", 61, "DCGM_FI_DEV_GPU_TEMP_CELSIUS", 61),
    "holdfast:gpu_memory_temperature_celsius": (
        "DCGM_FI_DEV_MEMORY_TEMP",
        70,
        "DCGM_FI_DEV_MEMORY_TEMP_CELSIUS",
        70,
    ),
    "holdfast:gpu_power_watts": ("DCGM_FI_DEV_POWER_USAGE", 540, "DCGM_FI_DEV_BOARD_POWER_WATTS", 540),
    "holdfast:gpu_energy_joules_total": (
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        9000,
        "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL",
        9,
    ),
    "holdfast:gpu_utilization_ratio": ("DCGM_FI_DEV_GPU_UTIL", 50, "DCGM_FI_DEV_GPU_UTIL_RATIO", 0.5),
    "holdfast:gpu_sm_clock_hertz": ("DCGM_FI_DEV_SM_CLOCK", 1980, "DCGM_FI_DEV_SM_CLOCK_HERTZ", 1980000000),
    "holdfast:gpu_memory_clock_hertz": (
        "DCGM_FI_DEV_MEM_CLOCK",
        2619,
        "DCGM_FI_DEV_MEMORY_CLOCK_HERTZ",
        2619000000,
    ),
    "holdfast:gpu_pcie_replays_total": ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", 4, "DCGM_FI_DEV_PCIE_REPLAY_TOTAL", 4),
    "holdfast:gpu_memory_used_bytes": ("DCGM_FI_DEV_FB_USED", 3, "DCGM_FI_DEV_FB_USED_BYTES", 3145728),
    "holdfast:gpu_remapped_rows_total": (
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        2,
        "DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL",
        2,
    ),
    "holdfast:gpu_memory_errors_corrected_total": (
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
        5,
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
        5,
    ),
    "holdfast:gpu_memory_errors_uncorrected_total": (
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
        1,
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
        1,
    ),
    "holdfast:gpu_pcie_lanes": ("DCGM_FI_DEV_PCIE_LINK_WIDTH", 16, "DCGM_FI_DEV_PCIE_LINK_WIDTH", 16),
    "holdfast:gpu_last_xid": ("DCGM_FI_DEV_XID_ERRORS", 79, "DCGM_FI_DEV_XID_ERROR", 79),
}


def generations() -> tuple[dict[str, str], list[Any]]:
    """Series for promtool, and what is to be found of them."""
    told: dict[str, str] = {}
    checks = []
    for record, (older, value, newer, new_value) in RENAMED.items():
        told[f'{older}{{gpu="0",UUID="U",Hostname="older",modelName="H100"}}'] = f"{value}x20"
        told[f'{newer}{{gpu="0",UUID="U",hostname="newer",modelName="H100"}}'] = f"{new_value}x20"
        for node in ("older", "newer"):
            sample = {"labels": f'{record}{{node="{node}",gpu="0",UUID="U"}}', "value": new_value}
            checks.append({"expr": f'{record}{{node="{node}"}}', "eval_time": "5m", "exp_samples": [sample]})
    return told, checks
