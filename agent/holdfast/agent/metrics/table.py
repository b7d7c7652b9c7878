"""Every metric of the agent. A name here is a promise: dashboards and alert rules are made of them.

`node` is the agent's node, `gpu` the GPU's index on it, `UUID` its own name, `training_job` NAMESPACE/NAME. No
label holds a pod, a round, an incident or a sentence: each new value of a label is a new series for good.

Ages are exported, not times: no clock of two machines has to agree.
"""

from typing import Final

from holdfast.api.metric import Metric, MetricKind

RANK: Final = ("training_job", "rank", "node")
GPU: Final = ("gpu", "UUID", "node")
PORT: Final = ("device", "port", "node")
DCGM: Final = ("gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname")
NODE: Final = ("node",)
JOB: Final = ("training_job", "node")
DISK: Final = ("path", "node")
SOURCE: Final = ("source", "node")

_GAUGE, _COUNTER = MetricKind.GAUGE, MetricKind.COUNTER
_SUMMARY, _UNKNOWN = MetricKind.SUMMARY, MetricKind.UNKNOWN

_AGENT = (
    Metric("holdfast_agent_build_info", _GAUGE, "1; the agent's version.", ("version", "training_job", "node")),
    Metric("holdfast_agent_cpu_seconds_total", _COUNTER, "CPU time the agent took, all threads.", NODE),
    Metric("holdfast_agent_resident_memory_bytes", _GAUGE, "Memory the agent holds.", NODE),
    Metric("holdfast_agent_watchdog_connected", _GAUGE, "1 while the watchdog answers, for each job.", JOB),
    Metric("holdfast_agent_reports_sent_total", _COUNTER, "Reports sent to the watchdog.", JOB),
    Metric(
        "holdfast_agent_events_dropped_total", _COUNTER, "Events lost because the watchdog was away too long.", JOB
    ),
    Metric("holdfast_sensor_up", _GAUGE, "1: the source can be read, 0: it cannot.", SOURCE),
    Metric(
        "holdfast_sensor_failures_total",
        _COUNTER,
        "Times that a source that could be read could not any more.",
        SOURCE,
    ),
    Metric("holdfast_sensor_read_seconds", _SUMMARY, "How long the looks at a sensor took.", SOURCE),
)

_RANKS = (
    Metric("holdfast_rank_step", _GAUGE, "Last completed optimizer step of the round.", RANK),
    Metric("holdfast_rank_loss", _GAUGE, "Loss as last published.", RANK),
    Metric("holdfast_rank_grad_norm", _GAUGE, "Gradient norm as last published.", RANK),
    Metric("holdfast_rank_step_seconds", _GAUGE, "Duration of the last step.", RANK),
    Metric(
        "holdfast_rank_step_part_seconds_total",
        _COUNTER,
        "What the steps of all rounds were made of: data, paused (to save or to evaluate), waiting (for others), "
        "own (what the script ran behind a step before it asked for a batch), and training, which is the rest.",
        (*RANK, "part"),
    ),
    Metric("holdfast_rank_step_tokens", _GAUGE, "Tokens this rank trained on in the last step.", RANK),
    Metric(
        "holdfast_rank_tokens_total", _COUNTER, "Tokens this rank trained on, as far as steps were seen.", RANK
    ),
    Metric("holdfast_rank_progress_age_seconds", _GAUGE, "Since the training loop last published anything.", RANK),
    Metric("holdfast_rank_pulse_age_seconds", _GAUGE, "Since the process's side thread last showed life.", RANK),
    Metric("holdfast_rank_phase", _GAUGE, "1 for the phase of the step it is in.", (*RANK, "phase")),
    Metric("holdfast_rank_process", _GAUGE, "1 for what the kernel says of the process.", (*RANK, "state")),
    Metric("holdfast_fingerprints_total", _COUNTER, "Fingerprints of parameters read from the ranks.", JOB),
)

_GPUS = (
    Metric("holdfast_gpu_healthy", _GAUGE, "1: healthy, 0: failed; absent: unknown.", GPU),
    Metric(
        "holdfast_gpu_temperature_margin_celsius",
        _GAUGE,
        "How much hotter it may get before it slows itself down; negative: it does.",
        GPU,
    ),
    Metric(
        "holdfast_gpu_temperature_limit_celsius",
        _GAUGE,
        "Where it slows itself down (slowdown) and switches itself off (shutdown).",
        (*GPU, "limit"),
    ),
    Metric(
        "holdfast_gpu_throttled_seconds_total",
        _COUNTER,
        "Time its clocks were held down since the driver was loaded, by why: thermal, power, board_limit, "
        "reliability.",
        (*GPU, "reason"),
    ),
    Metric(
        "holdfast_gpu_throttled",
        _GAUGE,
        "1 while its clocks are held down, by why: hw_slowdown, hw_thermal, sw_thermal, power_brake, power_cap.",
        (*GPU, "reason"),
    ),
    Metric("holdfast_gpu_power_limit_watts", _GAUGE, "The power it may draw.", GPU),
    Metric("holdfast_gpu_processes", _GAUGE, "Processes that compute on it.", GPU),
    Metric("holdfast_gpu_pcie_width_max", _GAUGE, "Lanes that its PCIe link was made for.", GPU),
    Metric("holdfast_gpu_pcie_generation_max", _GAUGE, "Generation that its PCIe link was made for.", GPU),
    Metric("holdfast_gpu_nvlinks", _GAUGE, "NVLinks by state: up, down.", (*GPU, "state")),
    Metric("holdfast_xid_errors_total", _COUNTER, "XID errors seen since the agent started.", (*GPU, "xid")),
    Metric("holdfast_xid_age_seconds", _GAUGE, "Since this XID error was last seen on the GPU.", (*GPU, "xid")),
    Metric("holdfast_gpu_lost_total", _COUNTER, "Times a GPU that answered answered no more.", GPU),
    Metric("holdfast_gpu_lost_age_seconds", _GAUGE, "Since the GPU was last seen to be lost.", GPU),
)

_NODE = (
    Metric(
        "holdfast_condition",
        _GAUGE,
        "1 while the condition holds of the GPU, the device or the node.",
        ("kind", "gpu", "UUID", "device", "node"),
    ),
    Metric(
        "holdfast_conditions_raised_total",
        _COUNTER,
        "Conditions raised since the agent started.",
        ("kind", "node"),
    ),
    Metric("holdfast_oom_kills_total", _COUNTER, "Processes that the kernel killed for memory.", NODE),
    Metric("holdfast_preemption_notices_total", _COUNTER, "Notices that the machine is to be taken away.", NODE),
    Metric(
        "holdfast_preemption_seconds",
        _GAUGE,
        "Until the machine is taken away; negative: it was due. Absent without a notice.",
        NODE,
    ),
    Metric(
        "holdfast_kernel_records_lost_total",
        _COUNTER,
        "Records of the kernel's log that were overwritten unread.",
        NODE,
    ),
    Metric("holdfast_port_up", _GAUGE, "1: the network port is active, 0: it is not.", PORT),
    Metric("holdfast_port_bytes_per_second", _GAUGE, "The port's rate.", PORT),
    Metric("holdfast_port_downs_total", _COUNTER, "Times the port's link went down.", PORT),
    Metric("holdfast_port_errors_total", _COUNTER, "Errors of the port, by its counter.", (*PORT, "counter")),
    Metric("holdfast_port_sent_bytes_total", _COUNTER, "Data sent through the port.", PORT),
    Metric("holdfast_port_received_bytes_total", _COUNTER, "Data received through the port.", PORT),
    Metric("holdfast_node_memory_total_bytes", _GAUGE, "Memory there is.", NODE),
    Metric("holdfast_node_memory_available_bytes", _GAUGE, "Memory that can still be used.", NODE),
    Metric("holdfast_node_disk_size_bytes", _GAUGE, "Size of the file system.", DISK),
    Metric("holdfast_node_disk_free_bytes", _GAUGE, "Free space of the file system.", DISK),
    Metric("holdfast_node_disk_inodes_free", _GAUGE, "Free inodes of the file system.", DISK),
    Metric("holdfast_node_disk_writable", _GAUGE, "1: the file system takes writes, 0: it does not.", DISK),
    Metric("holdfast_node_load1", _GAUGE, "Runnable and blocked tasks, over a minute.", NODE),
    Metric("holdfast_node_clock_synchronised", _GAUGE, "1: the kernel says so, 0: it is not.", NODE),
    Metric("holdfast_node_clock_error_seconds", _GAUGE, "How far the clock may be off, at the most.", NODE),
    Metric("holdfast_node_clock_offset_seconds", _GAUGE, "What the clock is still to be corrected by.", NODE),
    Metric("holdfast_node_uptime_seconds", _GAUGE, "Since the node booted.", NODE),
)

# Names, labels and units of dcgm-exporter 4.8 and older, which existing dashboards and rules know.
# Source: https://docs.nvidia.com/datacenter/dcgm/latest/dcgm-api/dcgm-api-field-ids.html
DCGM_METRICS: Final = (
    Metric("DCGM_FI_DEV_GPU_TEMP", _GAUGE, "GPU temperature (in C).", DCGM),
    Metric("DCGM_FI_DEV_MEMORY_TEMP", _GAUGE, "Memory temperature (in C).", DCGM),
    Metric("DCGM_FI_DEV_POWER_USAGE", _GAUGE, "Power draw (in W).", DCGM),
    Metric("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", _UNKNOWN, "Energy drawn since boot (in mJ).", DCGM),
    Metric("DCGM_FI_DEV_SM_CLOCK", _GAUGE, "SM clock frequency (in MHz).", DCGM),
    Metric("DCGM_FI_DEV_MEM_CLOCK", _GAUGE, "Memory clock frequency (in MHz).", DCGM),
    Metric("DCGM_FI_DEV_GPU_UTIL", _GAUGE, "GPU utilization (in %).", DCGM),
    Metric("DCGM_FI_DEV_FB_USED", _GAUGE, "Framebuffer memory used (in MiB).", DCGM),
    Metric("DCGM_FI_DEV_FB_FREE", _GAUGE, "Framebuffer memory free (in MiB).", DCGM),
    Metric("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", _GAUGE, "Why clocks are held down, as NVML's bits.", DCGM),
    Metric("DCGM_FI_DEV_THERMAL_VIOLATION", _UNKNOWN, "Time held down for heat (in ns).", DCGM),
    Metric("DCGM_FI_DEV_POWER_VIOLATION", _UNKNOWN, "Time held down for power (in ns).", DCGM),
    Metric("DCGM_FI_DEV_BOARD_LIMIT_VIOLATION", _UNKNOWN, "Time held down by the board (in ns).", DCGM),
    Metric("DCGM_FI_DEV_RELIABILITY_VIOLATION", _UNKNOWN, "Time held down for reliability (in ns).", DCGM),
    Metric("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", _UNKNOWN, "Corrected memory errors since loading.", DCGM),
    Metric("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", _UNKNOWN, "Uncorrected memory errors since loading.", DCGM),
    Metric("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", _UNKNOWN, "Corrected memory errors of its life.", DCGM),
    Metric("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", _UNKNOWN, "Uncorrected memory errors of its life.", DCGM),
    Metric("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", _UNKNOWN, "Rows remapped for corrected errors.", DCGM),
    Metric("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", _UNKNOWN, "Rows remapped for uncorrected errors.", DCGM),
    Metric("DCGM_FI_DEV_ROW_REMAP_PENDING", _GAUGE, "1: a row is to be remapped at the next reset.", DCGM),
    Metric("DCGM_FI_DEV_ROW_REMAP_FAILURE", _GAUGE, "1: a row could not be remapped.", DCGM),
    Metric("DCGM_FI_DEV_RETIRED_SBE", _UNKNOWN, "Pages retired for corrected errors.", DCGM),
    Metric("DCGM_FI_DEV_RETIRED_DBE", _UNKNOWN, "Pages retired for uncorrected errors.", DCGM),
    Metric("DCGM_FI_DEV_RETIRED_PENDING", _GAUGE, "1: a page is to be retired at the next reset.", DCGM),
    Metric("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", _UNKNOWN, "What the PCIe link had to repeat.", DCGM),
    Metric("DCGM_FI_DEV_PCIE_LINK_GEN", _GAUGE, "Generation the PCIe link runs at.", DCGM),
    Metric("DCGM_FI_DEV_PCIE_LINK_WIDTH", _GAUGE, "Lanes the PCIe link runs on.", DCGM),
    Metric("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", _UNKNOWN, "What NVLinks had to repeat.", DCGM),
    Metric("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", _UNKNOWN, "Recoveries of NVLinks.", DCGM),
    Metric("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", _UNKNOWN, "Damaged NVLink packets.", DCGM),
    Metric("DCGM_FI_DEV_XID_ERRORS", _GAUGE, "Value of the last XID error encountered.", DCGM),
)

OWN_METRICS: Final = (*_AGENT, *_RANKS, *_GPUS, *_NODE)
AGENT_METRICS: Final = (*OWN_METRICS, *DCGM_METRICS)
