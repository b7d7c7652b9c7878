"""Alerts about a job on this machine fire by a fault that befalls it, and are over when that is past.

The parts are in the order in which they befall the one run there is.
"""

from collections.abc import Iterator

import pytest
from alert_rig import START_S_MAX, Expected, Rig, alert_rig, expected
from monitoredrun import JOB, NAMESPACE
from panels import Shower
from proofs import OF_JOBS
from troubledrun import RACK, TroubledRun, troubled_run

from holdfast.agent.sensors.simulated_gpu import Fault

pytestmark = [pytest.mark.long, pytest.mark.needs("prometheus"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with alert_rig(tmp_path_factory.mktemp("prometheus"), "the-token-of-this-test") as rig:
        yield rig


@pytest.fixture(scope="module")
def run(rig: Rig, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TroubledRun]:
    with troubled_run(tmp_path_factory.mktemp("run"), rig.token_file.read_text()) as run:
        rig.scraped.append(run.targets)
        yield run


def of_job(alert: str, **more: str) -> Expected:
    return expected(alert, namespace=NAMESPACE, training_job=JOB, **more)


def test_a_job_is_slow_and_tells_nonsense(rig: Rig, run: TroubledRun) -> None:
    """By the run's fault script."""
    told = [of_job(each) for each in ("HoldfastTokensFalling", "HoldfastMfuFalling", "HoldfastLossSpike")]
    rig.until_fired(*told, within_s=START_S_MAX)
    rig.until_over(*told)


def test_a_job_gets_hot(rig: Rig, run: TroubledRun) -> None:
    first, *others = nodes = run.nodes()
    rising = expected("HoldfastGpuTemperatureRising", node=first, gpu="0")
    celsius = 70.0
    while not rig.has_fired(rising):
        celsius = 76.0 if celsius >= 86.0 else celsius + 0.5  # up to four degrees below where it slows down
        run.heat(first, celsius=celsius)
        rig.look()
    rig.until_fired(rising)
    hot = [expected("HoldfastGpuHot", node=each, gpu="0", rack=RACK) for each in nodes]
    rack = expected("HoldfastRackHot", rack=RACK)
    run.heat(first, *others, celsius=96.0)
    rig.until_fired(*hot, rack)
    run.heat(first, *others, celsius=50.0)
    rig.until_over(rising, *hot, rack)


def test_a_job_meets_a_bad_batch(rig: Rig, run: TroubledRun) -> None:
    told = of_job("HoldfastLossNotFinite")
    run.bad_batch.touch()
    rig.until_fired(told)
    whose = f"The loss of job {JOB} is not a finite number: rank 1 of node {run.node_of(1)}"
    rig.until(lambda: whose in rig.summaries(), "whose loss is not finite")
    run.bad_batch.unlink()
    rig.until_over(told)


def test_a_job_hangs(rig: Rig, run: TroubledRun) -> None:
    node = run.node_of(1)
    stands = of_job("HoldfastJobNotProgressing")
    stalled = of_job("HoldfastJobStalled")
    long = of_job("HoldfastIncidentOpenTooLong", kind="Hang", node=node)
    often = of_job("HoldfastRestartsTooOften")
    run.stop_worker(1)
    rig.until_fired(stalled, stands, long, often, within_s=START_S_MAX)
    rig.until_over(stalled, stands, long, often, within_s=START_S_MAX)


def test_a_job_loses_nodes(rig: Rig, run: TroubledRun) -> None:
    """One to a broken GPU, one to whoever owns the machine."""
    broken = run.node_of(0)
    near, spares = of_job("HoldfastEvictionBudgetNear"), of_job("HoldfastSparesExhausted")
    run.suffer(broken, Fault(gpu=0, xid=79, text="GPU has fallen off the bus"))
    rig.until_fired(near, spares, within_s=START_S_MAX)
    kept_from = f'holdfast_fleet_node_quarantined{{node="{broken}"}}'
    rig.until(lambda: rig.prometheus.query(kept_from), "all jobs kept from the broken node")
    run.hand(broken)
    rig.until_over(near, spares, within_s=START_S_MAX)
    taken = run.node_of(1)
    notice = expected("HoldfastPreemptionNotice", node=taken)
    run.suffer(taken, Fault(gpu=0, taken_away_in_s=120.0))
    rig.until_fired(notice)
    rig.until_over(notice, within_s=START_S_MAX)


def test_every_panel_about_a_job_showed_something(rig: Rig) -> None:
    rig.assert_shown(Shower.TROUBLED_JOB, namespace=NAMESPACE, job=JOB)


# What only a fault moves, as Prometheus has seen it at any time of this run.
MOVED_BY_FAULTS = (
    "holdfast_fleet_quarantined_nodes",
    "holdfast_job_avoided_nodes",
    "holdfast_job_eviction_budget_used_ratio",
    "holdfast_job_evictions_total",
    "holdfast_job_incident_cause_seconds_count",
    "holdfast_job_nonfinite_ranks",
)


def test_what_faults_move_was_seen_moved(rig: Rig, run: TroubledRun) -> None:
    still = [each for each in MOVED_BY_FAULTS if not rig.prometheus.query(f"max_over_time({each}[1h]) > 0")]
    assert still == []


def test_what_is_said_to_be_proved_here_was(rig: Rig) -> None:
    """The last test of this file: what the others saw."""
    assert rig.fired == rig.cleared == set(OF_JOBS)
