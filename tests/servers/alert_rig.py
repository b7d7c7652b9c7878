"""A Prometheus with the chart's rules, what it scrapes at the moment, and how a test waits for what it says.

In the rules minutes are made seconds: expressions stay, what they wait for and look back on shrinks.
"""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from helmchart import CHART
from panels import Shower, panels
from patience import patient
from prometheus_server import PrometheusServer, Target

PATIENCE_S = patient(30.0)
START_S_MAX = patient(120.0)  # every process imports torch, on a machine that may be busy
LOOK_INTERVAL_S = 0.3
Targets = Callable[[], Sequence[Target]]

RULES = sorted((CHART / "rules").glob("*.yaml"))
WAIT, WINDOW, HISTORY = "1s", "8s", "1m:1s"
# Ages that alerts compare with, in seconds: how long an alert about something that happened once stays, and after
# what time something takes too long.
AGES = {
    "gpus.yaml": {"< 600": "< 6"},
    "jobs.yaml": {"> 900": "> 3", "> 7200": "> 12"},
    "nodes.yaml": {"> -300": "> 60"},
}


@dataclass(frozen=True)
class Expected:
    """An alert about somebody. `culprit` are the labels that name who it is."""

    alert: str
    culprit: dict[str, str]

    def __str__(self) -> str:
        return selector(self.alert, **self.culprit)


def expected(alert: str, **culprit: str) -> Expected:
    return Expected(alert, culprit)


@dataclass
class Rig:
    """`scraped` are asked again and again: programs come and go."""

    prometheus: PrometheusServer
    token_file: Path
    scraped: list[Targets] = field(default_factory=list)
    # Each alert that a fault fired, and each that was over again after it had been.
    fired: set[str] = field(default_factory=set)
    cleared: set[str] = field(default_factory=set)

    def until(self, holds: Callable[[], Any], what: str, within_s: float = PATIENCE_S) -> None:
        """Look until it holds, following what comes and goes."""
        deadline = time.monotonic() + within_s
        while not holds():
            assert time.monotonic() < deadline, (
                f"waited {within_s} s for {what}; {self.prometheus.failing_rules()}"
            )
            self.look()

    def look(self) -> None:
        """Follow what comes and goes, and let some time pass."""
        self.prometheus.scrape([each for targets in self.scraped for each in targets()])
        time.sleep(LOOK_INTERVAL_S)

    def until_fired(self, *alerts: Expected, within_s: float = PATIENCE_S) -> None:
        """Now or a moment ago: some alerts are short."""
        for each in alerts:
            self.until(partial(self.has_fired, each), f"{each} to fire", within_s)
            self.fired.add(each.alert)

    def until_over(self, *alerts: Expected, within_s: float = PATIENCE_S) -> None:
        """None of them fires any more."""
        for each in alerts:
            self.until(partial(self.is_over, each), f"the end of {each}", within_s)
            if each.alert in self.fired:
                self.cleared.add(each.alert)

    def fires(self, each: Expected) -> bool:
        return bool(self.prometheus.query(selector("ALERTS", **_firing(each))))

    def is_over(self, each: Expected) -> bool:
        return not self.fires(each)

    def has_fired(self, each: Expected) -> bool:
        """Now or before."""
        return bool(self.prometheus.query(f"count_over_time({selector('ALERTS', **_firing(each))}[1h])"))

    def assert_shown(self, shower: Shower, *, namespace: str, job: str = "") -> None:
        """Each panel that this run proves showed something."""
        asked = [(each, each.ever(namespace=namespace, job=job)) for each in panels(shower)]
        blank = [str(each) for each, query in asked if not self.prometheus.query(query)]
        assert asked
        assert not blank, "\n".join(blank)

    def summaries(self) -> list[str]:
        """What is told now."""
        return [each["annotations"]["summary"] for each in self.prometheus.alerts()]


def selector(metric: str, **labels: str) -> str:
    pairs = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return f"{metric}{{{pairs}}}"


def _firing(each: Expected) -> dict[str, str]:
    return {"alertname": each.alert, "alertstate": "firing", **each.culprit}


@contextmanager
def alert_rig(folder: Path, token: str) -> Iterator[Rig]:
    """A Prometheus of its own, with its files and this token in `folder`."""
    token_file = folder / "token"
    token_file.write_text(f"{token}\n")
    token_file.chmod(0o600)
    rules = [shortened(each, folder) for each in RULES]
    prometheus = PrometheusServer(folder, rules=rules, token_file=token_file)
    prometheus.start()
    try:
        yield Rig(prometheus, token_file)
    finally:
        prometheus.stop()


def shortened(rules: Path, into: Path) -> Path:
    """A copy of one file of rules."""
    text = re.sub(r"\bfor: \w+", f"for: {WAIT}", rules.read_text())
    text = re.sub(r"\[\d+[smh]\]", f"[{WINDOW}]", text)
    text = re.sub(r"\boffset \d+[smh]\b", f"offset {WINDOW}", text)
    text = re.sub(r"\[\d+[hd]:\d+m\]", f"[{HISTORY}]", text)
    for told, short in AGES.get(rules.name, {}).items():
        assert told in text, f"{rules.name} compares no age with {told}"
        text = text.replace(told, short)
    copy = into / rules.name
    copy.write_text(text)
    return copy
