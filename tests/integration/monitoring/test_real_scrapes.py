"""Every alert and every panel on a real Prometheus that scrapes the real programs.

Two kinds of targets: a run on this machine whose faults are really injected, and a stage on which the programs'
own exporters tell of faults that this machine cannot have.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import yaml
from alert_rig import shortened
from helmchart import CHART
from monitoredrun import JOB, NAMESPACE, MonitoredRun, monitored_run
from patience import patient
from prometheus_server import PrometheusServer
from stage import STAGE, Stage
from staged_jobs import RICH

from holdfast.agent.sensors.fault_script import Fault

PATIENCE_S = patient(30.0)
START_S_MAX = patient(120.0)  # every process imports torch, on a machine that may be busy
LOOK_INTERVAL_S = 0.3
pytestmark = pytest.mark.timeout(300)
RULES = sorted((CHART / "rules").glob("*.yaml"))
PANELS = [
    (path.stem, panel["title"], target["expr"])
    for path in sorted((CHART / "dashboards").glob("*.json"))
    for panel in json.loads(path.read_text())["panels"]
    for target in panel.get("targets", ())
]


@dataclass(frozen=True)
class Rig:
    run: MonitoredRun
    stage: Stage
    prometheus: PrometheusServer

    def until(self, holds: Callable[[], Any], what: str, within_s: float = PATIENCE_S) -> None:
        """Look until it holds, following parts of the run that come and go."""
        deadline = time.monotonic() + within_s
        while not holds():
            assert time.monotonic() < deadline, (
                f"waited {within_s} s for {what}; {self.prometheus.failing_rules()}"
            )
            self.prometheus.scrape((*self.run.targets(), *self.stage.targets()))
            time.sleep(LOOK_INTERVAL_S)

    def fires(self, alert: str, **culprit: str) -> bool:
        return bool(self.prometheus.query(_selector("ALERTS", alertname=alert, alertstate="firing", **culprit)))

    def is_over(self, alert: str, **culprit: str) -> bool:
        return not self.fires(alert, **culprit)

    def answers(self, expressions: Sequence[str]) -> bool:
        """Whether one of them has data."""
        return any(self.prometheus.query(each) for each in expressions)

    def fired(self, alert: str, **culprit: str) -> bool:
        """Now or a moment ago: some alerts are short."""
        selector = _selector("ALERTS", alertname=alert, alertstate="firing", **culprit)
        return bool(self.prometheus.query(f"count_over_time({selector}[5m])"))


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """The run makes steps, and Prometheus has scraped all there is."""
    folder = tmp_path_factory.mktemp("monitoring")
    rules = [shortened(each, folder) for each in RULES]
    token = folder / "state" / "token"
    stage = Stage(token)
    prometheus = PrometheusServer(folder, rules=rules, token_file=token)
    with monitored_run(folder) as run:
        stage.start()
        prometheus.start()
        try:
            rig = Rig(run, stage, prometheus)
            rig.until(
                lambda: prometheus.query(f'holdfast_job_step{{training_job="{JOB}"}} > 5'), "steps", START_S_MAX
            )
            rig.until(lambda: not prometheus.query("up == 0"), "answers from all targets")
            yield rig
        finally:
            prometheus.stop()
            stage.stop()


@pytest.fixture(scope="module")
def sick(rig: Rig) -> Rig:
    """Everything on the stage is broken, and every alert about it has fired."""
    for alert, culprit in rig.stage.culprits().items():
        # A scrape that a busy machine answered late is told as well, until the next.
        rig.until(partial(rig.is_over, alert, **culprit), f"{alert} not to fire while all is well")
    rig.stage.fall_sick()
    for alert, culprit in rig.stage.culprits().items():
        rig.until(partial(rig.fired, alert, **culprit), f"{alert} about {culprit}")
    return rig


def test_faults_of_a_real_run_fire_alerts_that_clear(rig: Rig) -> None:
    hot, faulty = rig.run.nodes()[:2]
    rig.run.suffer(hot, Fault(gpu=0, temperature_c=96.0))
    rig.run.suffer(faulty, Fault(gpu=0, xid=94, text="contained memory error"))
    rig.until(lambda: rig.fired("HoldfastGpuHot", node=hot, gpu="0"), "the hot GPU")
    rig.until(lambda: rig.fired("HoldfastGpuXid", node=faulty, gpu="0", xid="94"), "the XID")
    rig.run.suffer(hot, Fault(gpu=0, temperature_c=50.0))
    rig.until(lambda: not rig.fires("HoldfastGpuHot", node=hot), "a GPU that is cool again")
    rig.until(lambda: not rig.fires("HoldfastGpuXid", node=faulty), "an XID that is past")

    # The XID made the job begin again, which takes longer on a busy machine.
    rig.until(lambda: _is_whole(rig), "the end of the XID's incident", START_S_MAX)
    _stop_a_rank(rig)
    hangs = f'holdfast_job_incidents_total{{training_job="{JOB}",kind="Hang"}} > 0'
    rig.until(lambda: rig.prometheus.query(hangs), "the hang to be found")
    rig.until(lambda: _is_whole(rig), "its end", START_S_MAX)
    rig.until(lambda: not rig.fires("HoldfastJobNotProgressing", training_job=JOB), "steps")


def test_every_alert_fires_about_who_is_sick(sick: Rig) -> None:
    alerts = {
        rule["alert"]
        for file in RULES
        for group in yaml.safe_load(file.read_text())["groups"]
        for rule in group["rules"]
        if "alert" in rule
    }
    assert set(sick.stage.culprits()) == alerts
    assert sick.prometheus.failing_rules() == []

    def told() -> list[str]:
        return [each["annotations"]["summary"] for each in sick.prometheus.alerts()]

    assert [summary for summary in told() if "<error" in summary or "<no value>" in summary] == []
    slow = "Job a/HoldfastTokensFalling makes 50% of its usual tokens a second"
    sick.until(lambda: slow in told(), "how slow the slow job is")  # a scrape may come late
    lost = "The loss of job a/HoldfastLossNotFinite is not a finite number: rank 12 of node n-culprit"
    sick.until(lambda: lost in told(), "whose loss is not finite")
    sick.until(lambda: "n-sound" not in " ".join(told()), "nothing about the sound node")


@pytest.mark.parametrize("dashboard", sorted({name for name, _, _ in PANELS}))
def test_every_panel_shows_something(sick: Rig, dashboard: str) -> None:
    """With the real run chosen, or where a fault is needed, with the staged job."""
    for _, title, expression in [each for each in PANELS if each[0] == dashboard]:
        chosen = [_filled(expression, NAMESPACE, JOB), _filled(expression, STAGE, RICH)]
        sick.until(partial(sick.answers, chosen), f"{title}: {chosen}")


def test_every_alert_clears_when_all_is_well_again(sick: Rig) -> None:
    sick.stage.recover()
    for alert, culprit in sick.stage.culprits().items():
        sick.until(partial(sick.is_over, alert, **culprit), f"the end of {alert}")


def _is_whole(rig: Rig) -> bool:
    return not rig.prometheus.query(f'holdfast_job_incidents_open{{training_job="{JOB}"}} > 0')


def _stop_a_rank(rig: Rig) -> None:
    """SIGSTOP of the first worker that has a record."""
    state = str(rig.run.directory.root)
    holdfast = [sys.executable, "-c", "from holdfast.cli.main import main; main()"]
    told = subprocess.run(
        [*holdfast, "ranks", "--state-dir", state, "-o", "json"],
        capture_output=True,
        check=True,
        timeout=PATIENCE_S,
    )
    os.kill(json.loads(told.stdout)[1]["pid"], signal.SIGSTOP)


def _filled(expression: str, namespace: str, job: str) -> str:
    """The expression as Grafana would send it."""
    chosen = {"$namespace": namespace, "$training_job": job, "$node": ".*"}
    chosen |= {"$__rate_interval": "8s", "$__range": "1m"}
    for name, value in chosen.items():
        expression = expression.replace(name, value)
    return expression


def _selector(metric: str, **labels: str) -> str:
    pairs = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return f"{metric}{{{pairs}}}"
