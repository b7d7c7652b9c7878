"""How each alert is proved: fired by a fault and cleared by its recovery, or listed with the reason.

All of them are tried on invented series as well (tests/integration/chart/alert_trials.py), which proves the waits
and windows that are shortened here.
"""

from collections.abc import Mapping
from types import MappingProxyType

DRIVER = "the machine's NVIDIA driver is played: "
KERNEL = "the machine's kernel is played: "

# By test_alerts_by_faults.py: the fault, and what ends the alert.
HERE: Mapping[str, str] = MappingProxyType(
    {
        # A watchdog over a Redis.
        "HoldfastStoreAway": "SIGKILL of Redis; it is started again",
        "HoldfastNobodyLeads": "SIGKILL of the only watchdog; it is started again",
        "HoldfastWatchdogSlow": "SIGSTOP of the watchdog for 1.5 s, SIGCONT; its next minute or its restart",
        "HoldfastEventsDropped": "300 XIDs on a node while the watchdog is dead; the watchdog is back",
        "HoldfastJobFailed": "a script that raises at its first line; it is mended, `restart`",
        "HoldfastIncidentNeedsHuman": "the same: its incident is paged; training goes on in a later round",
        # An agent on a machine.
        "HoldfastAgentDown": "the machine loses its power (SIGKILL of the agent); it boots",
        "HoldfastSensorUnreadable": DRIVER + "unloaded; loaded again",
        "HoldfastKernelLogLost": KERNEL + "it overwrote 40 records unread; it goes on without a gap",
        "HoldfastGpuXid": KERNEL + "it logs XID 74; no further one",
        "HoldfastGpuLost": DRIVER + "every call about a GPU fails; the driver is loaded anew",
        "HoldfastGpuThrottled": DRIVER + "clocks held down by heat; not any more",
        "HoldfastGpuPowerBrake": DRIVER + "the power brake is on; off for a minute",
        "HoldfastEccUncorrected": DRIVER + "an uncorrected memory error; the GPU is reset",
        "HoldfastRowRemapFailed": DRIVER + "no spare row; another GPU",
        "HoldfastGpuMemoryWearing": DRIVER + "a row remap is pending; the GPU is reset",
        "HoldfastGpuRecoveryNeeded": DRIVER + "it asks for a reset; the GPU is reset",
        "HoldfastPcieDegraded": DRIVER + "4 lanes of 16; 16 for a minute under load",
        "HoldfastPcieFatal": KERNEL + "AER logs a fatal error; the machine boots",
        "HoldfastNvlinkDown": DRIVER + "a link is inactive; active for a minute",
        "HoldfastNvswitchFault": KERNEL + "it logs a fatal SXid; the machine boots",
        "HoldfastLinkDown": KERNEL + "a port's state is DOWN; ACTIVE for a minute",
        "HoldfastLinkDegraded": KERNEL + "a port runs at 200 Gb/s of 400; at its full rate for a minute",
        "HoldfastLinkFlapping": KERNEL + "link_downed grew by three; an hour without",
        "HoldfastLinkErrors": KERNEL + "symbol_error grew by 500; an hour without",
        "HoldfastNodeDiskFull": KERNEL + "1% of a file system is free; 80%",
        "HoldfastDiskReadOnly": KERNEL + "a file system is mounted read-only; writable again",
        "HoldfastNodeMemoryLow": KERNEL + "4 GiB of 512 available; 400",
        "HoldfastHostMemoryError": KERNEL + "a machine check; the machine boots",
        "HoldfastMemoryKill": KERNEL + "it logs a kill for memory; no further one",
        "HoldfastClockUnsynchronised": KERNEL + "adjtimex says STA_UNSYNC for eleven minutes; synchronised",
    }
)

# By test_job_alerts.py, on a run on this machine.
OF_JOBS: Mapping[str, str] = MappingProxyType(
    {
        "HoldfastGpuHot": "a simulated GPU at 96 degrees; at 50",
        "HoldfastRackHot": "one GPU of each of the three nodes of a rack at 96 degrees; at 50",
        "HoldfastGpuTemperatureRising": "a simulated GPU gets a degree and a half hotter every second; at 50",
        "HoldfastTokensFalling": "`slow`: each step of rank 0 takes 0.4 s longer; it does not any more",
        "HoldfastMfuFalling": "the same",
        "HoldfastLossSpike": "`spike`: both ranks publish a loss a hundred times too high; as it is",
        "HoldfastLossNotFinite": "the script computes NaN on one rank while a file says so; it is removed",
        "HoldfastJobNotProgressing": "SIGSTOP of a worker: the hang is found, the worker replaced, steps go on",
        "HoldfastJobStalled": "the same: no step is seen; steps go on",
        "HoldfastIncidentOpenTooLong": "the same: the hang's incident is open until the first new step",
        "HoldfastRestartsTooOften": "the same: half of the budget of restarts is used; its time passes",
        "HoldfastEvictionBudgetNear": "XID 79: the node is evicted; the time of the budget passes",
        "HoldfastSparesExhausted": "the same: the spare takes its ranks; `holdfast return`",
        "HoldfastPreemptionNotice": "notice of 120 s until the node is taken away; it is left, its agent is gone",
    }
)

# By test_damage_alerts.py, on another.
OF_DAMAGE: Mapping[str, str] = MappingProxyType(
    {
        "HoldfastSelfTestFailed": "`compute-wrong`: a node fails the preflight; it is evicted and replaced",
        "HoldfastCheckpointStale": "`full-disk`: two checkpoints fail; the next is saved",
        "HoldfastDataWrong": "`wrong-data`: a rank takes a batch again; an hour later it is old news",
        "HoldfastCorruptionFound": "`flip-bit`: the replicas vote; the node is evicted and replaced",
        "HoldfastDivergence": "`spike`: one rank publishes a loss a hundred times too high; the job goes back",
    }
)

# Likewise, by test_redundancy_alerts.py, which has a Redis with Sentinels, and by
# tests/integration/operator/test_operator_alerts.py, which has an API server.
ELSEWHERE: Mapping[str, str] = MappingProxyType(
    {
        "HoldfastRedundancyLost": "SIGKILL of a replica of Redis, and of a standby; each is started again",
        "HoldfastNoOperatorLeads": "SIGKILL of the only operator; it is started again",
        "HoldfastWatchdogUnreachable": "SIGKILL of the watchdog; it is started again",
        "HoldfastJobDegraded": "a node goes and there is no room for its ranks; another node comes",
    }
)

# Not fired by a fault. Why, and what is proved instead beside the trial on invented series.
LISTED: Mapping[str, str] = MappingProxyType(
    {
        "HoldfastStraggler": "a rank is found slow after some twenty steps of a second, which would double this "
        "run; that one is found, with what it costs, is proved by tests/integration/embedded/test_slow_worker.py",
        "HoldfastBudget": "time spends money, and no fault does; that each GPU-second is booked once, at its "
        "price, is proved by tests/unit/brain/test_accounting.py and counted again in five real runs",
        "HoldfastBudgetForecast": "the same, and it looks at an hour",
        "HoldfastFaultsGather": "it takes days of faults of many nodes; that they are counted, named, told and "
        "scraped is proved by tests/integration/watchdog/test_gathered_faults.py",
        "HoldfastDetectorFailing": "only an error in Holdfast makes a detector fail; no input is known that does",
    }
)
