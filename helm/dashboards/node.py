"""One node, or a few side by side: its GPUs, links, memory and what its agent can read."""

from grafana import GREEN, GREY, RED, YELLOW, Dashboard, Query, Row, Variable, graph, states, table

HERE = '{node=~"$node"}'
GPU = "{{node}} GPU {{gpu}}"
NODE = Variable(name="node", label="Node", query="label_values(holdfast_agent_build_info, node)", every=True)

STATE = Row(
    "What is wrong",
    (
        states(
            "GPUs",
            "What the agent says of each. A gap is Unknown.",
            Query(expr=f"min by (node, gpu) (holdfast_gpu_healthy{HERE})", legend=GPU),
            words={0: ("failed", RED), 1: ("healthy", GREEN)},
            width=12,
            runbooks=("HoldfastGpuLost",),
        ),
        states(
            "Sources",
            "Whether the agent can read them.",
            Query(expr=f"min by (node, source) (holdfast_sensor_up{HERE})", legend="{{node}} {{source}}"),
            words={0: ("unreadable", YELLOW), 1: ("read", GREEN)},
            width=12,
            runbooks=("HoldfastSensorUnreadable", "HoldfastAgentDown"),
        ),
        states(
            "Conditions",
            "While they hold.",
            Query(
                expr=f"max by (node, kind, gpu, device) (holdfast_condition{HERE})",
                legend="{{node}} {{kind}} {{gpu}} {{device}}",
            ),
            words={0: ("over", GREY), 1: ("holds", RED)},
        ),
        table(
            "XIDs",
            "Since each was last seen.",
            Query(expr=f"min by (node, gpu, xid) (holdfast_xid_age_seconds{HERE})"),
            unit="s",
            runbooks=("HoldfastGpuXid",),
        ),
        graph(
            "XIDs",
            "So far, since the agent started.",
            Query(
                expr=f"sum by (node, gpu, xid) (holdfast_xid_errors_total{HERE})",
                legend=f"{GPU}: XID {{{{xid}}}}",
            ),
            unit="none",
            runbooks=("HoldfastGpuXid",),
        ),
    ),
)
HEAT = Row(
    "Heat and power",
    (
        graph(
            "Temperature",
            "Of the GPUs.",
            Query(expr=f"holdfast:gpu_temperature_celsius{HERE}", legend=GPU),
            unit="celsius",
            width=8,
            runbooks=("HoldfastGpuHot",),
        ),
        graph(
            "Memory temperature",
            "Of the GPUs' memory.",
            Query(expr=f"holdfast:gpu_memory_temperature_celsius{HERE}", legend=GPU),
            unit="celsius",
            width=8,
        ),
        graph(
            "Margin",
            "How much hotter each may get before it slows itself down.",
            Query(expr=f"min by (node, gpu) (holdfast_gpu_temperature_margin_celsius{HERE})", legend=GPU),
            unit="celsius",
            width=8,
            runbooks=("HoldfastGpuHot", "HoldfastGpuTemperatureRising"),
        ),
        graph(
            "Power",
            "What each draws.",
            Query(expr=f"holdfast:gpu_power_watts{HERE}", legend=GPU),
            unit="watt",
            width=8,
        ),
        graph(
            "Power limit",
            "What each may draw.",
            Query(expr=f"max by (node, gpu) (holdfast_gpu_power_limit_watts{HERE})", legend=GPU),
            unit="watt",
            width=8,
        ),
        graph(
            "Share of time held down",
            "Clocks held down, by why.",
            Query(
                expr="max by (node, gpu, reason) "
                f"(rate(holdfast_gpu_throttled_seconds_total{HERE}[$__rate_interval]))",
                legend=f"{GPU}: {{{{reason}}}}",
            ),
            unit="percentunit",
            width=8,
            runbooks=("HoldfastGpuThrottled", "HoldfastGpuPowerBrake"),
        ),
        states(
            "Held down now",
            "Why the clocks are held down.",
            Query(
                expr=f"max by (node, gpu, reason) (holdfast_gpu_throttled{HERE})", legend=f"{GPU}: {{{{reason}}}}"
            ),
            words={0: ("no", GREY), 1: ("held down", YELLOW)},
            runbooks=("HoldfastGpuThrottled",),
        ),
    ),
)
LOAD = Row(
    "Load",
    (
        graph(
            "Utilisation",
            "Of the GPUs.",
            Query(expr=f"holdfast:gpu_utilization_ratio{HERE}", legend=GPU),
            unit="percentunit",
        ),
        graph(
            "GPU memory used",
            "Of what each has.",
            Query(expr=f"holdfast:gpu_memory_used_bytes{HERE}", legend=GPU),
            unit="bytes",
        ),
        graph(
            "SM clock",
            "Of the GPUs.",
            Query(expr=f"holdfast:gpu_sm_clock_hertz{HERE}", legend=GPU),
            unit="hertz",
        ),
        graph(
            "Memory clock",
            "Of the GPUs.",
            Query(expr=f"holdfast:gpu_memory_clock_hertz{HERE}", legend=GPU),
            unit="hertz",
        ),
    ),
)
ERRORS = Row(
    "Memory and links of the GPUs",
    (
        graph(
            "Memory errors",
            "Since the driver was loaded: corrected, and not.",
            Query(expr=f"holdfast:gpu_memory_errors_corrected_total{HERE}", legend=f"{GPU} corrected"),
            Query(expr=f"holdfast:gpu_memory_errors_uncorrected_total{HERE}", legend=f"{GPU} uncorrected"),
            unit="none",
            runbooks=("HoldfastEccUncorrected", "HoldfastGpuMemoryWearing"),
        ),
        graph(
            "Remapped rows",
            "Of the GPUs' memory, for uncorrected errors.",
            Query(expr=f"holdfast:gpu_remapped_rows_total{HERE}", legend=GPU),
            unit="none",
            runbooks=("HoldfastRowRemapFailed", "HoldfastGpuMemoryWearing"),
        ),
        graph(
            "PCIe replays",
            "What the links had to repeat, a second.",
            Query(expr=f"rate(holdfast:gpu_pcie_replays_total{HERE}[$__rate_interval])", legend=GPU),
            unit="none",
            width=8,
            runbooks=("HoldfastLinkErrors",),
        ),
        graph(
            "PCIe lanes",
            "Those the links run on, and those they were made for.",
            Query(expr=f"holdfast:gpu_pcie_lanes{HERE}", legend=GPU),
            Query(expr=f"max by (node, gpu) (holdfast_gpu_pcie_width_max{HERE})", legend=f"{GPU}, made for"),
            unit="none",
            width=8,
            runbooks=("HoldfastPcieDegraded",),
        ),
        graph(
            "NVLinks",
            "By state.",
            Query(expr=f"max by (node, gpu, state) (holdfast_gpu_nvlinks{HERE})", legend=f"{GPU}: {{{{state}}}}"),
            unit="none",
            width=8,
            runbooks=("HoldfastNvlinkDown", "HoldfastNvswitchFault"),
        ),
    ),
)
NETWORK = Row(
    "Network",
    (
        states(
            "Ports",
            "Whether each is active.",
            Query(
                expr=f"min by (node, device, port) (holdfast_port_up{HERE})", legend="{{node}} {{device}}/{{port}}"
            ),
            words={0: ("down", RED), 1: ("up", GREEN)},
            width=8,
            runbooks=("HoldfastLinkDown",),
        ),
        graph(
            "Downs",
            "Times a link went down, so far.",
            Query(
                expr=f"max by (node, device, port) (holdfast_port_downs_total{HERE})",
                legend="{{node}} {{device}}/{{port}}",
            ),
            unit="none",
            width=8,
            runbooks=("HoldfastLinkFlapping",),
        ),
        graph(
            "Errors a second",
            "By counter.",
            Query(
                expr=f"sum by (node, device, counter) (rate(holdfast_port_errors_total{HERE}[$__rate_interval]))",
                legend="{{node}} {{device}} {{counter}}",
            ),
            unit="none",
            width=8,
            runbooks=("HoldfastLinkErrors",),
        ),
    ),
)
MACHINE = Row(
    "The machine",
    (
        graph(
            "Memory available",
            "Share of what may be used.",
            Query(
                expr=f"max by (node) (holdfast_node_memory_available_bytes{HERE})"
                f" / max by (node) (holdfast_node_memory_total_bytes{HERE})",
                legend="{{node}}",
            ),
            unit="percentunit",
            width=8,
            runbooks=("HoldfastNodeMemoryLow", "HoldfastMemoryKill"),
        ),
        graph(
            "Disk free",
            "Share of each file system that is watched.",
            Query(
                expr=f"max by (node, path) (holdfast_node_disk_free_bytes{HERE})"
                f" / max by (node, path) (holdfast_node_disk_size_bytes{HERE})",
                legend="{{node}} {{path}}",
            ),
            unit="percentunit",
            width=8,
            runbooks=("HoldfastNodeDiskFull",),
        ),
        graph(
            "Load",
            "Runnable and blocked tasks, over a minute.",
            Query(expr=f"max by (node) (holdfast_node_load1{HERE})", legend="{{node}}"),
            unit="none",
            width=8,
        ),
        graph(
            "Clock",
            "How far it may be off, at the most.",
            Query(expr=f"max by (node) (holdfast_node_clock_error_seconds{HERE})", legend="{{node}}"),
            unit="s",
            width=8,
            runbooks=("HoldfastClockUnsynchronised",),
        ),
        graph(
            "Kills for memory, and records lost",
            "Processes that the kernel killed, and records of its log that nobody read.",
            Query(expr=f"max by (node) (holdfast_oom_kills_total{HERE})", legend="{{node}} kills"),
            Query(
                expr=f"max by (node) (holdfast_kernel_records_lost_total{HERE})", legend="{{node}} records lost"
            ),
            unit="none",
            width=8,
            runbooks=("HoldfastMemoryKill", "HoldfastKernelLogLost"),
        ),
        graph(
            "Uptime",
            "Since the node booted.",
            Query(expr=f"max by (node) (holdfast_node_uptime_seconds{HERE})", legend="{{node}}"),
            unit="s",
            width=8,
        ),
    ),
)
RANKS = Row(
    "Ranks here",
    (
        graph(
            "Steps",
            "Last step of each rank.",
            Query(
                expr=f"max by (training_job, rank) (holdfast_rank_step{HERE})", legend="{{training_job}} {{rank}}"
            ),
            unit="none",
            width=8,
        ),
        graph(
            "Loss",
            "Of each rank.",
            Query(
                expr=f"max by (training_job, rank) (holdfast_rank_loss{HERE})", legend="{{training_job}} {{rank}}"
            ),
            unit="none",
            width=8,
        ),
        graph(
            "Silence",
            "Since each training loop published anything.",
            Query(
                expr=f"max by (training_job, rank) (holdfast_rank_progress_age_seconds{HERE})",
                legend="{{training_job}} {{rank}}",
            ),
            unit="s",
            width=8,
        ),
    ),
)

DASHBOARD = Dashboard(
    uid="holdfast-node",
    title="Holdfast / Node",
    description="One node, or a few side by side: its GPUs, links, memory, and what its agent can read.",
    variables=(NODE,),
    rows=(STATE, HEAT, LOAD, ERRORS, NETWORK, MACHINE, RANKS),
)
