"""What each alert is tried with, by Prometheus' own unit tests: series that are well, then sick, then well again.

A sample is half a minute. All is well for twenty minutes, sick for forty, and well from then on.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from renamed_fields import generations

STEP = "30s"
WELL_MIN, SICK_MIN, AFTER_MIN = 20, 40, 70
END_MIN = WELL_MIN + SICK_MIN + AFTER_MIN
Labels = Mapping[str, str]
GPU = {"node": "sick", "gpu": "3", "UUID": "GPU-3"}
AGENT = {"app_kubernetes_io_name": "holdfast", "app_kubernetes_io_component": "agent"}


@dataclass(frozen=True)
class Trial:
    """`series` make the alert fire at minute `at`, naming `culprit`."""

    alert: str
    culprit: Labels
    series: Mapping[str, str]
    at: int = WELL_MIN + SICK_MIN - 2


def series(name: str, **labels: str) -> str:
    pairs = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return f"{name}{{{pairs}}}"


def gauge(well: float, sick: float) -> str:
    return f"{well}x{2 * WELL_MIN - 1} {sick}x{2 * SICK_MIN - 1} {well}x{2 * AFTER_MIN}"


def counter(grows: float) -> str:
    """Still, then grown once."""
    return f"0x{2 * WELL_MIN - 1} {grows}x{2 * (SICK_MIN + AFTER_MIN)}"


def job(name: str, progress: str = f"0+1x{2 * END_MIN}", phase: str = f"1x{2 * END_MIN}") -> dict[str, str]:
    """A job that trains."""
    labels = {"namespace": "hf", "training_job": name}
    return {
        series("holdfast_job_phase", **labels, phase="Running"): phase,
        series("holdfast_job_high_step", **labels): progress,
    }


def of_job(name: str, metric: str, values: str, **labels: str) -> dict[str, str]:
    return {series(metric, namespace="hf", training_job=name, **labels): values}


def speed(name: str, tokens_per_s: str, ranks: str) -> dict[str, str]:
    return of_job(name, "holdfast_job_tokens_per_second", tokens_per_s) | of_job(
        name, "holdfast_job_world_size", ranks
    )


def condition(alert: str, kind: str, culprit: Labels) -> Trial:
    """Raised, and cleared by being absent."""
    raised = f"_x{2 * WELL_MIN} 1x{2 * SICK_MIN - 1} _x{2 * AFTER_MIN}"
    return Trial(alert, culprit, {series("holdfast_condition", kind=kind, **culprit): raised})


def incident(alert: str, state: str, kind: str, *named: str) -> Trial:
    """An incident of its own job; the alert passes on `named` of its labels."""
    told = {"training_job": f"a/{alert}/{state}", "kind": kind, "node": "sick", "gpu": "GPU-3", "rank": "12"}
    age = f"_x{2 * WELL_MIN} 1+30x{2 * SICK_MIN - 1} _x{2 * AFTER_MIN}"
    name = series("holdfast_job_incident_age_seconds", namespace="hf", state=state, **told)
    return Trial(alert, {label: told[label] for label in ("training_job", *named)}, {name: age})


def about_job(alert: str, told: dict[str, str], at: int = WELL_MIN + SICK_MIN - 2, **named: str) -> Trial:
    return Trial(alert, {"namespace": "hf", "training_job": f"a/{alert}", **named}, told, at)


def redundancy() -> Iterator[Trial]:
    """Of an installation that goes on, one of each kind is away."""
    always, away = f"1x{2 * END_MIN}", f"0x{2 * WELL_MIN - 1} _x{2 * SICK_MIN} 0x{2 * AFTER_MIN}"
    told = {"redis": {series("holdfast_watchdog_store_replicas", namespace="short", pod="w-1"): gauge(2, 1)}}
    for part, metric in (("watchdog", "holdfast_watchdog_leading"), ("operator", "holdfast_operator_leader")):
        told[part] = {
            series(metric, namespace="short", pod=f"{part}-1"): always,
            series(metric, namespace="short", pod=f"{part}-2"): away,
        }
    for part, shown in told.items():
        yield Trial("HoldfastRedundancyLost", {"namespace": "short", "part": part}, shown)


def of_holdfast() -> Iterator[Trial]:
    watchdog = {"namespace": "sick", "pod": "w-1"}
    yield Trial("HoldfastStoreAway", watchdog, {series("holdfast_watchdog_store_up", **watchdog): gauge(1, 0)})
    yield Trial(
        "HoldfastNobodyLeads",
        {"namespace": "sick"},
        {
            series("holdfast_watchdog_leading", **watchdog): gauge(1, 0),
            series("holdfast_watchdog_leading", namespace="sick", pod="w-2"): f"0x{2 * END_MIN}",
        },
    )
    gone = f"1x{2 * WELL_MIN - 1} _x{2 * SICK_MIN} 1x{2 * AFTER_MIN}"
    yield Trial(
        "HoldfastNobodyLeads",
        {"namespace": "gone"},
        {series("holdfast_watchdog_leading", namespace="gone", pod=pod): gone for pod in ("w-1", "w-2")},
        at=WELL_MIN + 10,
    )
    yield Trial(
        "HoldfastNoOperatorLeads",
        {"namespace": "gone"},
        {series("holdfast_operator_leader", namespace="gone", pod=pod): gone for pod in ("o-1", "o-2")},
        at=WELL_MIN + 10,
    )
    yield Trial(
        "HoldfastNoOperatorLeads",
        {"namespace": "sick"},
        {
            series("holdfast_operator_leader", namespace="sick", pod="o-1"): gauge(1, 0),
            series("holdfast_operator_leader", namespace="sick", pod="o-2"): f"0x{2 * END_MIN}",
        },
    )
    yield from redundancy()
    yield Trial(
        "HoldfastWatchdogSlow",
        watchdog,
        {series("holdfast_watchdog_loop_lag_seconds", **watchdog): gauge(0.01, 2)},
    )
    yield Trial(
        "HoldfastAgentDown",
        {"node": "sick", "pod": "a-1"},
        {series("up", **AGENT, node="sick", pod="a-1", namespace="hf"): gauge(1, 0)},
    )
    yield Trial(
        "HoldfastEventsDropped",
        {"node": "sick", "training_job": "a/x"},
        {series("holdfast_agent_events_dropped_total", node="sick", training_job="a/x"): counter(3)},
        at=25,
    )
    yield Trial(
        "HoldfastSensorUnreadable",
        {"node": "sick", "source": "nvml"},
        {series("holdfast_sensor_up", node="sick", source="nvml"): gauge(1, 0)},
    )
    yield Trial(
        "HoldfastKernelLogLost",
        {"node": "sick"},
        {series("holdfast_kernel_records_lost_total", node="sick"): counter(40)},
        at=25,
    )
    name = "a/HoldfastDetectorFailing"
    failures = of_job(name, "holdfast_watchdog_judge_failures_total", counter(2), detector="HangDetector")
    yield about_job("HoldfastDetectorFailing", failures, at=25, detector="HangDetector")
    name = "a/HoldfastWatchdogUnreachable"
    yield about_job(
        "HoldfastWatchdogUnreachable",
        of_job(name, "holdfast_job_condition", gauge(1, 0), condition="WatchdogReachable"),
    )


def of_jobs() -> Iterator[Trial]:
    name = "a/HoldfastJobFailed"
    yield about_job("HoldfastJobFailed", of_job(name, "holdfast_job_phase", gauge(0, 1), phase="Failed"))
    stands = f"0+1x{2 * WELL_MIN - 1} 39x{2 * SICK_MIN - 1} 40+1x{2 * AFTER_MIN}"
    yield about_job("HoldfastJobNotProgressing", job("a/HoldfastJobNotProgressing", progress=stands))
    name = "a/HoldfastJobStalled"
    yield about_job(
        "HoldfastJobStalled",
        of_job(name, "holdfast_job_step_age_seconds", gauge(0, 90))
        # Nobody tells of step times while the agents are silent.
        | of_job(name, "holdfast_job_step_seconds", f"2x{2 * (WELL_MIN + SICK_MIN) - 20} stale", stat="max"),
    )
    for asked in ("Paged", "Notified"):
        yield incident("HoldfastIncidentNeedsHuman", asked, "Xid", "kind", "node", "gpu", "rank")
    yield incident("HoldfastIncidentOpenTooLong", "Open", "Hang", "kind", "node", "gpu", "rank")
    name = "a/HoldfastJobDegraded"
    yield about_job(
        "HoldfastJobDegraded", of_job(name, "holdfast_job_condition", gauge(0, 1), condition="Degraded")
    )
    name = "a/HoldfastRestartsTooOften"
    yield about_job("HoldfastRestartsTooOften", of_job(name, "holdfast_job_restarts_total", counter(9)), at=30)
    name = "a/HoldfastEvictionBudgetNear"
    yield about_job(
        "HoldfastEvictionBudgetNear", of_job(name, "holdfast_job_eviction_budget_used_ratio", gauge(0, 0.75))
    )
    name = "a/HoldfastBudget"
    yield about_job(
        "HoldfastBudget",
        of_job(name, "holdfast_job_cost_total", f"85x{2 * END_MIN}", currency="EUR")
        | of_job(name, "holdfast_job_budget", gauge(200, 100), currency="EUR")
        | of_job(name, "holdfast_job_budget_alert_ratio", f"0.8x{2 * END_MIN}"),
        currency="EUR",
    )
    name = "a/HoldfastBudgetForecast"
    yield about_job(
        "HoldfastBudgetForecast",
        of_job(name, "holdfast_job_cost_total", counter(5), currency="EUR")
        | of_job(name, "holdfast_job_budget", f"100x{2 * END_MIN}", currency="EUR"),
        currency="EUR",
    )
    name = "a/HoldfastSparesExhausted"
    yield about_job(
        "HoldfastSparesExhausted",
        job(name)
        | of_job(name, "holdfast_job_members", f"2x{2 * END_MIN}", state="spares_wanted")
        | of_job(name, "holdfast_job_members", gauge(2, 0), state="spare"),
    )
    name = "a/HoldfastCheckpointStale"
    yield about_job(
        "HoldfastCheckpointStale",
        job(name) | of_job(name, "holdfast_job_condition", gauge(1, 0), condition="CheckpointHealthy"),
    )
    name = "a/HoldfastLossNotFinite"
    yield about_job("HoldfastLossNotFinite", of_job(name, "holdfast_job_nonfinite_ranks", gauge(0, 8)))
    name = "a/HoldfastLossSpike"
    yield about_job(
        "HoldfastLossSpike", job(name) | of_job(name, "holdfast_job_loss", gauge(2, 9), stat="median"), at=24
    )
    name = "a/HoldfastStraggler"
    slow = {"cause": "Machine", "node": "sick", "rank": "12"}
    share = f"_x{2 * WELL_MIN} 0.23x{2 * SICK_MIN - 1} _x{2 * AFTER_MIN}"
    yield about_job("HoldfastStraggler", of_job(name, "holdfast_job_slow_rank_ratio", share, **slow), **slow)
    ranks = f"8x{2 * END_MIN}"
    name = "a/HoldfastTokensFalling"
    yield about_job("HoldfastTokensFalling", job(name) | speed(name, gauge(1e5, 7e4), ranks))
    name = "a/HoldfastMfuFalling"
    falls = of_job(name, "holdfast_job_mfu_ratio", gauge(0.5, 0.4))
    yield about_job("HoldfastMfuFalling", job(name) | falls | speed(name, gauge(1e5, 9e4), ranks))
    yield incident("HoldfastCorruptionFound", "Open", "Corruption", "node", "gpu", "rank")
    told = of_job("a/HoldfastDataWrong", "holdfast_job_incidents_total", counter(1), kind="Data")
    yield about_job("HoldfastDataWrong", told)
    yield incident("HoldfastSelfTestFailed", "Open", "SelfTest", "node", "gpu")
    for state in ("Open", "Paged"):  # gone back for; come again
        yield incident("HoldfastDivergence", state, "Divergence", "rank")
    name = "a/HoldfastDivergence"
    found = of_job(name, "holdfast_job_incidents_total", counter(1), kind="Divergence")
    yield about_job("HoldfastDivergence", found, at=WELL_MIN + 5)


def of_gpus() -> Iterator[Trial]:
    age = f"_x{2 * WELL_MIN} 1+30x{2 * (SICK_MIN + AFTER_MIN)}"
    for xid in ("79", "119"):  # hardware, and what may be either but evicts
        told = {**GPU, "xid": xid}
        yield Trial("HoldfastGpuXid", told, {series("holdfast_xid_age_seconds", **told): age}, at=25)
    yield Trial("HoldfastGpuLost", GPU, {series("holdfast_gpu_healthy", **GPU): gauge(1, 0)})
    yield Trial("HoldfastGpuHot", GPU, {series("holdfast_gpu_temperature_margin_celsius", **GPU): gauge(30, 2)})
    rack = {
        series(
            "holdfast_gpu_temperature_margin_celsius", node=f"r-{node}", rack="r7", gpu="0", UUID=f"R-{node}"
        ): (gauge(30, 1 if node < 3 else 30))
        for node in range(5)
    }
    yield Trial("HoldfastRackHot", {"rack": "r7"}, rack)
    rising = {**GPU, "UUID": "GPU-rising"}
    heats = f"40x{2 * WELL_MIN - 1} 14 11 8 5 40x{2 * (SICK_MIN + AFTER_MIN)}"
    yield Trial(
        "HoldfastGpuTemperatureRising",
        rising,
        {series("holdfast_gpu_temperature_margin_celsius", **rising): heats},
        at=WELL_MIN + 1,
    )
    slow = f"0x{2 * WELL_MIN - 1} 0+15x{2 * SICK_MIN - 1} {15 * (2 * SICK_MIN - 1)}x{2 * AFTER_MIN}"
    yield Trial(
        "HoldfastGpuThrottled",
        GPU,
        {series("holdfast_gpu_throttled_seconds_total", **GPU, reason="thermal"): slow},
    )
    yield condition("HoldfastGpuPowerBrake", "PowerBrake", GPU)
    yield condition("HoldfastEccUncorrected", "EccUncorrected", GPU)
    yield condition("HoldfastRowRemapFailed", "RowRemapFailed", GPU)
    yield condition("HoldfastGpuMemoryWearing", "RowRemapPending", GPU)
    yield condition("HoldfastGpuRecoveryNeeded", "RecoveryNeeded", GPU)
    yield condition("HoldfastPcieDegraded", "PcieDegraded", GPU)
    yield condition("HoldfastPcieFatal", "PcieFatal", {"node": "sick", "device": "0000:3b:00.0"})
    yield condition("HoldfastNvlinkDown", "NvlinkDown", {**GPU, "device": "nvlink4"})
    yield condition("HoldfastNvswitchFault", "NvswitchFault", {"node": "sick", "device": "nvswitch0"})


def of_nodes() -> Iterator[Trial]:
    yield condition("HoldfastLinkDown", "LinkDown", {"node": "sick", "device": "mlx5_0"})
    yield condition("HoldfastLinkDegraded", "LinkDegraded", {"node": "sick", "device": "mlx5_3"})
    yield condition("HoldfastLinkFlapping", "LinkFlapping", {"node": "sick", "device": "mlx5_1"})
    yield condition("HoldfastLinkErrors", "LinkErrors", {"node": "sick", "device": "mlx5_2"})
    yield condition("HoldfastNodeDiskFull", "DiskFull", {"node": "sick", "device": "/ckpt"})
    yield condition("HoldfastDiskReadOnly", "DiskReadOnly", {"node": "sick", "device": "/logs"})
    yield condition("HoldfastHostMemoryError", "HostMemoryError", {"node": "sick"})
    yield condition("HoldfastNodeMemoryLow", "MemoryLow", {"node": "sick"})
    yield condition("HoldfastClockUnsynchronised", "ClockUnsynchronised", {"node": "sick"})
    yield Trial(
        "HoldfastMemoryKill",
        {"node": "sick"},
        {series("holdfast_oom_kills_total", node="sick"): counter(1)},
        at=25,
    )
    switch = {"family": "network", "kind": "switch", "place": "leaf-7"}
    gathered = f"_x{2 * WELL_MIN} 6x{2 * SICK_MIN} _x{2 * AFTER_MIN}"
    yield Trial("HoldfastFaultsGather", switch, {series("holdfast_fleet_gathered_faults", **switch): gathered})
    notice = f"_x{2 * WELL_MIN} 120-30x{2 * (SICK_MIN + AFTER_MIN)}"
    yield Trial(
        "HoldfastPreemptionNotice",
        {"node": "sick"},
        {series("holdfast_preemption_seconds", node="sick"): notice},
        at=21,
    )


def trials() -> list[Trial]:
    return [*of_holdfast(), *of_jobs(), *of_gpus(), *of_nodes()]


def sound() -> dict[str, str]:
    """A job, a node and a Holdfast with nothing wrong: no alert names them, whatever happens beside them.

    The job shrinks to half of its ranks and makes half of the tokens, and grows again.
    """
    always = f"1x{2 * END_MIN}"
    return {
        series("holdfast_watchdog_leading", namespace="hf", pod="w-1"): always,
        series("holdfast_watchdog_leading", namespace="hf", pod="w-2"): f"0x{2 * END_MIN}",
        series("holdfast_watchdog_store_up", namespace="hf", pod="w-1"): always,
        series("holdfast_watchdog_store_replicas", namespace="hf", pod="w-1"): f"2x{2 * END_MIN}",
        series("holdfast_operator_leader", namespace="hf", pod="o-1"): always,
        series("holdfast_operator_leader", namespace="hf", pod="o-2"): f"0x{2 * END_MIN}",
        # On one machine, which belongs to no namespace, there is one of each.
        series("holdfast_watchdog_leading", instance="here"): always,
        series("holdfast_gpu_healthy", node="sound", gpu="0", UUID="S"): always,
        series("holdfast_gpu_temperature_margin_celsius", node="sound", gpu="0", UUID="S"): f"20x{2 * END_MIN}",
        series("holdfast_sensor_up", node="sound", source="nvml"): always,
        series("holdfast_oom_kills_total", node="sound"): f"7x{2 * END_MIN}",
        **job("a/sound"),
        **speed("a/sound", gauge(1e5, 5e4), gauge(8, 4)),
        **of_job("a/sound", "holdfast_job_mfu_ratio", gauge(0.5, 0.45)),
    }


def unit_tests(rules: list[str]) -> dict[str, Any]:
    """What promtool reads: every trial side by side, and one in which nothing is scraped at all."""
    told = {name: values for trial in trials() for name, values in trial.series.items()} | sound()
    fields, renamed = generations()
    quiet = 'ALERTS{alertstate="firing"}'
    checks = [
        {"expr": quiet, "eval_time": f"{WELL_MIN - 1}m", "exp_samples": []},
        {"expr": quiet, "eval_time": f"{END_MIN}m", "exp_samples": []},
        *(
            {"expr": f"ALERTS{{{who}}}", "eval_time": f"{at}m", "exp_samples": []}
            for who in ('node="sound"', 'training_job="a/sound"')
            for at in (25, 58)
        ),
        *(_fires(trial) for trial in trials()),
    ]
    nothing = [
        {
            "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
            "eval_time": "9m",
            "exp_samples": [
                {"labels": '{alertname="HoldfastNobodyLeads"}', "value": 1},
                {"labels": '{alertname="HoldfastNoOperatorLeads"}', "value": 1},
            ],
        }
    ]
    return {
        "rule_files": rules,
        "evaluation_interval": STEP,
        "tests": [
            _test("one after the other", told, checks + renamed, fields),
            _test("nothing is scraped", {"up": "0x30"}, nothing, {}),
        ],
    }


def _test(name: str, told: Mapping[str, str], checks: list[Any], more: Mapping[str, str]) -> dict[str, Any]:
    inputs = [{"series": each, "values": values} for each, values in {**told, **more}.items()]
    return {"name": name, "interval": STEP, "input_series": inputs, "promql_expr_test": checks}


def _fires(trial: Trial) -> dict[str, Any]:
    culprit = "".join(f',{label}="{value}"' for label, value in trial.culprit.items())
    firing = f'count(ALERTS{{alertname="{trial.alert}",alertstate="firing"{culprit}}})'
    return {"expr": firing, "eval_time": f"{trial.at}m", "exp_samples": [{"labels": "{}", "value": 1}]}
