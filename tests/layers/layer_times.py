"""Where a layer's time goes: its slowest files, by the clock and by the processor, and build/tests/LAYER.json.

A pytest plugin that tests/conftest.py loads; it says nothing unless `--layer NAME` is given, as `make` does.

The processor time of a file is that of its test processes and their children, with what those waited for. Not in
it: grandchildren still alive, and what others start for a test (containerd and the pods in it). The rest of the
time is waiting: for an event, for the disk, or for a processor that something else has.
"""

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
from needs import Needs, rows

FOLDER = Path("build", "tests")  # below the root of the run
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
SLOWEST = 12  # files shown; all are in the JSON


@dataclass
class Spent:
    """What one file took, in seconds: by the clock (added up over processes side by side), and of processors."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    tests: int = 0

    @property
    def waiting(self) -> float:
        """The share of its time by the clock in which no processor worked for it."""
        return max(0.0, 1.0 - self.cpu_s / self.wall_s) if self.wall_s else 0.0


@dataclass
class TestRecord:
    """How one test ended and what it took, its fixtures included. `run_again`: a run failed and did not count."""

    __test__ = False  # for pytest, which looks for tests by their names
    wall_s: float = 0.0
    cpu_s: float = 0.0
    failed: bool = False
    run_again: bool = False


@dataclass
class LayerTimes:
    """What a layer took. `cpu_s` is of all of it, also of imports, collection and servers that outlive a file.

    `not_proved` are the tests that it left out, counted by reason, as needs.py has them.
    """

    layer: str
    wall_s: float = 0.0
    cpu_s: float = 0.0
    files: dict[str, Spent] = field(default_factory=dict)
    tests: dict[str, TestRecord] = field(default_factory=dict)
    not_proved: list[dict[str, Any]] = field(default_factory=list)

    def add(self, test: str, *, wall_s: float, cpu_s: float, ends_test: bool, outcome: str = "passed") -> None:
        """One report of a test, of which there are three: of its setup, itself, and what it tears down."""
        record = self.tests.setdefault(test, TestRecord())
        record.failed |= outcome == "failed"
        record.run_again |= outcome == "rerun"
        spent = self.files.setdefault(test.split("::")[0], Spent())
        spent.tests += ends_test
        for each in (record, spent):
            each.wall_s += wall_s
            each.cpu_s += cpu_s

    def slowest(self, count: int = SLOWEST) -> list[tuple[str, Spent]]:
        return sorted(self.files.items(), key=lambda each: -each[1].wall_s)[:count]

    def table(self) -> list[str]:
        """For a person; the last line is the layer."""
        lines = [f"{'seconds':>9} {'of CPU':>8} {'waiting':>8} {'tests':>6}  slowest files"]
        lines += [row(spent, file) for file, spent in self.slowest()]
        elsewhere = max(0.0, self.cpu_s - sum(each.cpu_s for each in self.files.values()))
        tests = sum(each.tests for each in self.files.values())
        whole = Spent(self.wall_s, self.cpu_s, tests)
        lines.append(row(whole, f"layer {self.layer}, {elsewhere:.0f} s of CPU outside its tests"))
        return lines

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def row(spent: Spent, what: str) -> str:
    return f"{spent.wall_s:9.1f} {spent.cpu_s:8.1f} {spent.waiting:8.0%} {spent.tests:6}  {what}"


def cpu_s() -> float:
    """Of this process and its children, those included that were waited for, by it or by a child."""
    spent = os.times()
    ended = spent.user + spent.system + spent.children_user + spent.children_system
    return ended + sum(map(_of_child_s, _children()))


def _children() -> Iterator[str]:
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError), open(f"/proc/self/task/{thread}/children") as children:
            yield from children.read().split()


def _of_child_s(pid: str) -> float:
    """Of a child that lives, with its own children that it waited for: it may be a server or a fork server.

    Source: proc_pid_stat(5), fields 14 to 17
    """
    try:
        with open(f"/proc/{pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / TICKS_PER_S


class TimesOfTests:
    """In each process that runs tests: notes on a test's last report what all of it took of the processor."""

    def __init__(self) -> None:
        self._at: float | None = None  # when the test before ended

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        if self._at is None:
            self._at = cpu_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        report = yield
        if report.when == "teardown":
            now = cpu_s()
            report.cpu_s = max(0.0, now - (self._at or 0.0))  # xdist carries it to where the reports are read
            self._at = now
        return report

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["cpu_s"] = cpu_s()


class LayerReport:
    """Where the reports are read: adds them up, and shows and writes the sum."""

    def __init__(self, layer: str, folder: Path, needs: Needs):
        self.times = LayerTimes(layer)
        self._folder = folder
        self._needs = needs
        self._left_out: list[dict[str, Any]] = []
        self._started = time.perf_counter()
        self._of_workers_s = 0.0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.times.add(
            report.nodeid,
            wall_s=report.duration,
            cpu_s=getattr(report, "cpu_s", 0.0),
            ends_test=report.when == "teardown",
            outcome=report.outcome,
        )

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.times.add(report.nodeid, wall_s=0.0, cpu_s=0.0, ends_test=False, outcome="failed")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        said: Mapping[str, Any] = getattr(node, "workeroutput", {})
        self._of_workers_s += said.get("cpu_s", 0.0)
        self._left_out = said.get("not_proved", self._left_out)  # each has collected the same

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        self.times.wall_s = time.perf_counter() - self._started
        # A test process side by side may not have been waited for yet, so what it said itself counts.
        self.times.cpu_s = max(cpu_s(), time.process_time() + self._of_workers_s)
        self.times.not_proved = rows(self._needs.counts) or self._left_out
        terminalreporter.section(f"where the time of {self.times.layer} goes")
        for line in self.times.table():
            terminalreporter.write_line(line)
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / f"{self.times.layer}.json").write_text(json.dumps(self.times.to_json(), indent=1))


def add_options(parser: pytest.Parser) -> None:
    parser.addoption("--layer", metavar="NAME", help="say at the end where the time went, as layer NAME")


def watch_times(config: pytest.Config) -> None:
    """Of a run of a layer; after watch_needs, whose counts it writes down."""
    layer: str | None = config.getoption("--layer")
    if layer is None:
        return
    config.pluginmanager.register(TimesOfTests(), "times-of-tests")
    if not hasattr(config, "workerinput"):
        needs: Needs = config.pluginmanager.getplugin("needs")
        config.pluginmanager.register(LayerReport(layer, config.rootpath / FOLDER, needs), "layer-report")


def read(path: Path) -> LayerTimes:
    """What `LAYER.json` holds. Raises OSError, ValueError."""
    found: Mapping[str, Any] = json.loads(path.read_text())
    files = {file: Spent(**spent) for file, spent in found["files"].items()}
    tests = {test: TestRecord(**record) for test, record in found["tests"].items()}
    return LayerTimes(found["layer"], found["wall_s"], found["cpu_s"], files, tests, found["not_proved"])


if __name__ == "__main__":
    for each in sys.argv[1:]:
        print(*read(Path(each)).table(), sep="\n")
