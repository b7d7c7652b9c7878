"""Alerts fire by a fault that is brought about, name who suffers from it, and are over when that is mended.

A real Prometheus with the chart's rules scrapes real programs: a watchdog over a Redis, a job's launcher, and an
agent on a machine whose driver and kernel are played. `proofs.py` says which fault stands for which alert.
"""

from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest
import yaml
from alert_rig import RULES, START_S_MAX, Expected, Rig, alert_rig, expected
from installation import NAMESPACE, POD, FailingJob, Installation
from panels import Shower
from proofs import ELSEWHERE, HERE, LISTED, OF_DAMAGE, OF_JOBS
from sickmachine import NODE, SYNCHRONISED, UNSYNCHRONISED, SickMachine

pytestmark = [pytest.mark.long, pytest.mark.needs("prometheus", "redis"), pytest.mark.timeout(300)]
HW_THERMAL, POWER_BRAKE = 0x40, 0x80
EVENTS_BEYOND_KEEPING = 300
HOUR_S = 3600.0
UNTIL_BOOT = ("HoldfastPcieFatal", "HoldfastNvswitchFault", "HoldfastHostMemoryError")


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with alert_rig(tmp_path_factory.mktemp("prometheus"), "the-token-of-this-test") as rig:
        yield rig


@pytest.fixture(scope="module")
def installation(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    installation = Installation(tmp_path_factory.mktemp("installation"), rig.token_file)
    try:
        installation.start()
        rig.scraped.append(lambda: [installation.target()])
        yield installation
    finally:
        installation.stop()


@pytest.fixture(scope="module")
def machine(
    rig: Rig, installation: Installation, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SickMachine]:
    folder = tmp_path_factory.mktemp("machine")
    machine = SickMachine(folder, watchdog=installation.address, token_file=rig.token_file)
    try:
        machine.agent.start()
        rig.scraped.append(lambda: [machine.target()])
        yield machine
    finally:
        machine.stop()


def at_node(alert: str, **more: str) -> Expected:
    return expected(alert, node=NODE, **more)


def on_gpu(alert: str, gpu: int, **more: str) -> Expected:
    return at_node(alert, gpu=str(gpu), **more)


def of_watchdog(alert: str, **more: str) -> Expected:
    return expected(alert, namespace=NAMESPACE, **more)


def suffer(machine: SickMachine) -> list[Expected]:
    """All that can befall a machine at once, each of its parts something else."""
    gpus = machine.nvml.gpus
    gpus[0].set(throttle=HW_THERMAL)
    gpus[1].set(throttle=POWER_BRAKE)
    gpus[2].set(ecc_uncorrected=1)
    gpus[3].set(remap_failed=1)
    gpus[4].set(remap_pending=1)
    gpus[5].field(pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, 1)
    gpus[6].set(pcie_width=4)
    gpus[7].link(4, active=False)
    gpus[8].lose()
    machine.port("mlx5_0", up=False)
    machine.port("mlx5_1", gbps=200)
    machine.port("mlx5_2", downs=3)
    machine.port("mlx5_3", errors=500)
    machine.memory(available_gib=4)
    machine.disks(free_ratio=0.01, read_only=("/logs",))
    machine.clock(UNSYNCHRONISED)
    machine.kernel_says("NVRM: Xid (PCI:0000:10:00): 74, pid=77, NVLink: fatal error detected on link 4")
    machine.kernel_says("pcieport 0000:3a:00.0: AER: Uncorrected (Fatal) error received: 0000:3b:00.0")
    machine.kernel_says("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up")
    machine.kernel_says("mce: Uncorrected hardware memory error in user-access at 7f0000")
    machine.kernel_says("Out of memory: Killed process 77 (python) total-vm:1kB", lost=40)
    return [
        on_gpu("HoldfastGpuThrottled", 0),
        on_gpu("HoldfastGpuXid", 0, xid="74"),
        on_gpu("HoldfastGpuPowerBrake", 1),
        on_gpu("HoldfastEccUncorrected", 2),
        on_gpu("HoldfastRowRemapFailed", 3),
        on_gpu("HoldfastGpuMemoryWearing", 4, kind="RowRemapPending"),
        on_gpu("HoldfastGpuRecoveryNeeded", 5),
        on_gpu("HoldfastPcieDegraded", 6),
        on_gpu("HoldfastNvlinkDown", 7, device="nvlink4"),
        on_gpu("HoldfastGpuLost", 8),
        at_node("HoldfastPcieFatal", device="0000:3b:00"),
        at_node("HoldfastNvswitchFault", device="nvidia-nvswitch0"),
        at_node("HoldfastHostMemoryError"),
        at_node("HoldfastMemoryKill"),
        at_node("HoldfastKernelLogLost"),
        at_node("HoldfastLinkDown", device="mlx5_0/1"),
        at_node("HoldfastLinkFlapping", device="mlx5_2/1"),
        at_node("HoldfastLinkErrors", device="mlx5_3/1"),
        at_node("HoldfastNodeMemoryLow"),
        at_node("HoldfastNodeDiskFull", device="/ckpt"),
        at_node("HoldfastDiskReadOnly", device="/logs"),
    ]


def test_what_befalls_a_machine(rig: Rig, machine: SickMachine) -> None:
    rig.until(lambda: rig.prometheus.query("count(holdfast_port_up == 1) == 4"), "well ports")
    rig.until(lambda: rig.prometheus.query('count(holdfast_gpu_nvlinks{state="up"} == 18) == 9'), "well GPUs")
    rig.until(lambda: rig.prometheus.query("count(holdfast_node_disk_writable == 1) == 2"), "well disks")
    told = suffer(machine)
    rig.until_fired(*told)
    machine.pass_time(700.0)  # a slow port and a clock that drifts are given their time
    late = [at_node("HoldfastLinkDegraded", device="mlx5_1/1"), at_node("HoldfastClockUnsynchronised")]
    rig.until_fired(*late)
    told += late
    assert rig.prometheus.failing_rules() == []
    assert [each for each in rig.summaries() if "<error" in each or "<no value>" in each] == []

    machine.nvml.unload_driver()
    machine.remedy_gpus()
    dumb = at_node("HoldfastSensorUnreadable", source="nvml")
    rig.until_fired(dumb)
    machine.nvml.load_driver()
    machine.port("mlx5_0")
    machine.port("mlx5_1")
    machine.memory(available_gib=400)
    machine.disks()
    machine.clock(SYNCHRONISED)
    rig.until_over(dumb)
    machine.last(64.0)  # a minute without it
    machine.pass_time(HOUR_S)
    rig.until_over(*(each for each in told if each.alert not in UNTIL_BOOT))
    still = [each for each in told if each.alert in UNTIL_BOOT]
    assert all(rig.fires(each) for each in still)

    machine.fail()
    down = at_node("HoldfastAgentDown")
    rig.until_fired(down)
    machine.boot()
    rig.until_over(down, *still)


def test_what_befalls_an_installation(rig: Rig, installation: Installation, machine: SickMachine) -> None:
    away = of_watchdog("HoldfastStoreAway", pod=POD)
    installation.redis.kill()
    rig.until_fired(away)
    installation.redis.start()
    rig.until_over(away)

    slow = of_watchdog("HoldfastWatchdogSlow", pod=POD)
    installation.hold_up()
    rig.until_fired(slow)

    nobody = of_watchdog("HoldfastNobodyLeads")
    dropped = at_node("HoldfastEventsDropped")
    installation.watchdog.kill()
    rig.until_fired(nobody)
    for _ in range(EVENTS_BEYOND_KEEPING):
        machine.kernel_says("NVRM: Xid (PCI:0000:20:00): 43, pid=77, Ch 00000008")
    rig.until_fired(dropped)
    installation.lead()
    rig.until_over(nobody, slow, dropped)


def test_a_job_that_fails_by_its_own_script(rig: Rig, installation: Installation, tmp_path: Path) -> None:
    job = FailingJob(installation, tmp_path)
    failed = of_watchdog("HoldfastJobFailed", training_job=job.name)
    human = of_watchdog("HoldfastIncidentNeedsHuman", training_job=job.name, kind="UserCode")
    try:
        job.submit()
        rig.until_fired(failed, human, within_s=START_S_MAX)
        job.mend()
        rig.until_over(failed, human, within_s=START_S_MAX)
    finally:
        job.stop()


def test_every_panel_about_machines_and_watchdogs_showed_something(rig: Rig) -> None:
    rig.assert_shown(Shower.INSTALLATION, namespace=NAMESPACE)


def test_every_alert_is_proved_by_a_fault_or_listed_with_a_reason() -> None:
    alerts = [
        rule["alert"]
        for file in RULES
        for group in yaml.safe_load(file.read_text())["groups"]
        for rule in group["rules"]
        if "alert" in rule
    ]
    assert sorted([*HERE, *OF_JOBS, *OF_DAMAGE, *ELSEWHERE, *LISTED]) == sorted(alerts)


def test_what_is_said_to_be_proved_here_was(rig: Rig) -> None:
    """The last test of this file: what the others saw."""
    assert rig.fired == rig.cleared == set(HERE)
