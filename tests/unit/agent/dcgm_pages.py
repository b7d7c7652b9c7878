"""What dcgm-exporters of both generations serve, for tests."""

from collections.abc import Mapping

UUID = "GPU-0a1b2c3d-0000-0000-0000-00000000000{}"

FIRST: Mapping[str, float] = {
    "DCGM_FI_DEV_SM_CLOCK": 1980,
    "DCGM_FI_DEV_MEM_CLOCK": 2619,
    "DCGM_FI_DEV_GPU_TEMP": 61,
    "DCGM_FI_DEV_MEMORY_TEMP": 72,
    "DCGM_FI_DEV_POWER_USAGE": 512.5,
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 5_000_000,
    "DCGM_FI_DEV_GPU_UTIL": 97,
    "DCGM_FI_DEV_FB_USED": 1024,
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 3,
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": 1,
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": 0,
}
NEWER: Mapping[str, float] = {
    "DCGM_FI_DEV_SM_CLOCK_HERTZ": 1_980_000_000,
    "DCGM_FI_DEV_MEMORY_CLOCK_HERTZ": 2_619_000_000,
    "DCGM_FI_DEV_GPU_TEMP_CELSIUS": 61,
    "DCGM_FI_DEV_MEMORY_TEMP_CELSIUS": 72,
    "DCGM_FI_DEV_BOARD_POWER_WATTS": 512.5,
    "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL": 5_000,
    "DCGM_FI_DEV_GPU_UTIL_RATIO": 0.97,
    "DCGM_FI_DEV_FB_USED_BYTES": 1024 * 2**20,
    "DCGM_FI_DEV_PCIE_REPLAY_TOTAL": 3,
    "DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL": 1,
    "DCGM_FI_DEV_ROW_REMAP_FAILED": 0,
}


def page(values: Mapping[str, float], *, gpus: int = 2, host_label: str = "Hostname", extra: str = "") -> str:
    """One page: every value for every GPU, as the exporter writes it."""
    lines = []
    for name, value in values.items():
        lines += [f"# HELP {name} what it is.", f"# TYPE {name} gauge"]
        for gpu in range(gpus):
            labels = (
                f'gpu="{gpu}",UUID="{UUID.format(gpu)}",pci_bus_id="00000000:0{gpu}:00.0",device="nvidia{gpu}",'
                f'modelName="NVIDIA H100 80GB HBM3",{host_label}="n0",DCGM_FI_DRIVER_VERSION="570.86"'
            )
            lines.append(f"{name}{{{labels}}} {value}")
    return "\n".join(lines) + "\n" + extra


def xid_line(name: str, gpu: int, value: int, labels: str = "") -> str:
    return f'{name}{{gpu="{gpu}",UUID="{UUID.format(gpu)}"{labels}}} {value}\n'
