"""No test is left out in silence: what this machine cannot run is counted, by reason, or fails.

A pytest plugin that tests/conftest.py loads.

    --here               leave out what the machine lacks, and what is marked `long`; this is an ordinary run
    --keeps PERCENT      which is an error where, on a machine that lacks everything, fewer would be left to run
    --leave-out REASON   leave out all of it: only count

Without the two, as in a whole run, a test that lacks something which nobody installs fails, and says what; so does
a test or module of a layer that skips itself, or is expected to fail. What only a bench can prove is left out, and
counted, in each run.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pytest
from capabilities import WHOLE, Capability, needed

LONG = "takes long"


@dataclass(frozen=True)
class LeftOut:
    """Why tests did not run, and the command that runs them."""

    reason: str
    proved_by: str


class Needs:
    """Leaves out what `is_here` (an ordinary run) or `all_of_it` says, and keeps the count of it."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._is_here = bool(config.getoption("--here"))
        self._all_of_it: str | None = config.getoption("--leave-out")
        self.counts: Counter[LeftOut] = Counter()

    @pytest.hookimpl(trylast=True)  # what `-m` leaves to another layer is not counted here
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        kept, gone = list[pytest.Item](), list[pytest.Item]()
        for item in items:
            reason = self._reason(item)
            (kept if reason is None else gone).append(item)
            if reason is not None:
                self.counts[reason] += 1
        self._demand_that_enough_is_left(items)
        if gone:
            self._config.hook.pytest_deselected(items=gone)
            items[:] = kept
        output: dict[str, Any] | None = getattr(self._config, "workeroutput", None)
        if output is not None:
            output["not_proved"] = rows(self.counts)

    def _demand_that_enough_is_left(self, items: Sequence[pytest.Item]) -> None:
        """By the marks alone, so that it is the same on each machine. Raises UsageError."""
        percent: float = self._config.getoption("--keeps")
        left = [item for item in items if not (is_long(item) or needs_of(item))]
        if self._is_here and len(left) < percent / 100 * len(items):
            raise pytest.UsageError(
                f"{len(left)} of {len(items)} tests need nothing and do not take long, fewer than {percent} %: "
                "make one cheaper, or mark fewer `long`"
            )

    def _reason(self, item: pytest.Item) -> LeftOut | None:
        if self._all_of_it is not None:
            return LeftOut(self._all_of_it, f"make test-{self._config.getoption('--layer')}")
        for each in needs_of(item):
            lacking = each.lacking()
            if lacking and (self._is_here or each.proved_by != WHOLE):
                return LeftOut(f"{each.name}: {lacking}", each.proved_by)
        return LeftOut(LONG, WHOLE) if self._is_here and is_long(item) else None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        for each in needs_of(item):
            if not each.is_installed and (lacking := each.lacking()):
                pytest.fail(f"it needs {each.name}: {lacking}", pytrace=False)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        report = yield
        self._fail_if_skipped(report)
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self) -> Iterator[None]:
        report = yield
        self._fail_if_skipped(report)  # a module may skip itself whole
        return report

    def _fail_if_skipped(self, report: Any) -> None:
        """Of a layer. A failure that is expected counts as a skip: whatever it is about was not proved."""
        if not report.skipped or self._config.getoption("--layer") is None:
            return
        why = (
            report.longrepr[2]
            if isinstance(report.longrepr, tuple)
            else getattr(report, "wasxfail", report.longrepr)
        )
        report.outcome = "failed"
        report.longrepr = (
            f"{report.nodeid} skipped itself, so that nobody counts it ({why}): "
            "mark what it needs, @pytest.mark.needs(...), tests/layers/capabilities.py"
        )

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self.counts:
            session.exitstatus = pytest.ExitCode.OK  # none was to run, and that is counted


def is_long(item: pytest.Item) -> bool:
    return item.get_closest_marker("long") is not None


def needs_of(item: pytest.Item) -> list[Capability]:
    words = [word for mark in item.iter_markers("needs") for word in mark.args]
    try:
        return needed(words, getattr(item, "fixturenames", ()))
    except ValueError as error:
        raise pytest.UsageError(f"{item.nodeid}: {error}") from error


def rows(counts: Counter[LeftOut]) -> list[dict[str, Any]]:
    """As LAYER.json has them, the most first."""
    return [{**asdict(each), "tests": count} for each, count in counts.most_common()]


def add_options(parser: pytest.Parser) -> None:
    parser.addoption("--here", action="store_true", help="leave out, and count, what it lacks or takes long")
    parser.addoption("--keeps", type=float, default=0.0, metavar="PERCENT", help="fail where --here leaves fewer")
    parser.addoption("--leave-out", metavar="REASON", help="run no test, and count all")


def watch_needs(config: pytest.Config) -> None:
    config.pluginmanager.register(Needs(config), "needs")
