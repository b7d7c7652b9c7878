"""`holdfast simulate`: what failures make of a job under a policy, or would have made of a run under another."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from holdfast.api.errors import InvalidInput, Problem, Unavailable
from holdfast.api.judgement import Brief, Judgement
from holdfast.cli.output import ExitCode, Format, emit, format_option, remark, table
from holdfast.cli.simulation.chart import Bars, check_chart, write_chart
from holdfast.cli.simulation.journal import journal_of
from holdfast.cli.simulation.livedrun import Gathered, Live, Where, gathered, where
from holdfast.cli.simulation.scenariofile import Draft, draft_of
from holdfast.cli.simulation.wording import (
    comparison_text,
    ranking_bars,
    ranking_text,
    replayed_text,
    verdict_bars,
    verdict_text,
)
from holdfast.cli.target import JobWord, Target, target_options
from holdfast.simulator.comparison import Comparison, Side, compared
from holdfast.simulator.failuretable import preset, preset_names, rates_of
from holdfast.simulator.recorded import Untrained, recorded
from holdfast.simulator.replayed import brief_of, judged_by, replayed
from holdfast.simulator.scenario import Scenario
from holdfast.simulator.sweep import Point, axes, points, ranked, says
from holdfast.simulator.verdict import Verdict, deciding, verdict

BY: Final = "lost_gpu_hours"
FILE = click.Path(path_type=Path, dir_okay=False)


class Compared(msgspec.Struct, frozen=True):
    """What is written of two policies: how they differ, and each by itself."""

    comparison: Comparison
    verdicts: tuple[Verdict, Verdict]


@click.command("simulate")
@click.argument("words", nargs=-1, metavar="[FILE]")
@click.option("--preset", "tables", multiple=True, metavar="NAME|FILE", help="What fails; `--presets` lists them.")
@click.option("--presets", "listed", is_flag=True, help="List the published tables of failures, and end.")
@click.option("--nodes", metavar="N", help="Nodes with ranks.")
@click.option("--spares", metavar="N", help="Warm nodes beside them.")
@click.option("--days", metavar="N", help="How long.")
@click.option("--price", metavar="AMOUNT", help="Of a GPU and hour.")
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", help="Any other setting, as `times.load_s=40`."
)
@click.option(
    "--seeds", type=click.IntRange(1, 10_000), help="How many runs, each of its own chances.  [default: 20]"
)
@click.option(
    "--first-seed", type=click.IntRange(0, 2**31), default=1, show_default=True, help="Where seeds begin."
)
@click.option(
    "--compare", nargs=2, type=FILE, metavar="A B", help="Two files in the same fleets: which is better."
)
@click.option(
    "--sweep", multiple=True, metavar="NAME=VALUES", help="Try all values, as `spares=0..64..8`; and more words."
)
@click.option("--by", default=BY, show_default=True, metavar="FIGURE", help="What decides which is better.")
@click.option(
    "--journal", type=click.Path(path_type=Path, file_okay=False), help="State directory of a run to live again."
)
@click.option("--policy", type=FILE, help="A job file: live JOB, or the run, through again under it.")
@click.option(
    "--brief", type=FILE, metavar="FILE", help="Beside --policy: what it comes to, also there, in a line."
)
@click.option("--plot", type=FILE, metavar="FILE", help="Draw it too: .svg or .png.")
@click.option("--workers", type=click.IntRange(1, 1024), help="Processes.  [default: one a core]")
@click.option("--cluster", metavar="ADDRESS", help="Live it through there: dask://HOST:PORT or ray://HOST:PORT.")
@format_option
@target_options(JobWord.OPTION)
def simulate(words: tuple[str, ...], target: Target, form: Format, **given: Any) -> ExitCode:
    """Live a job through weeks of failures in virtual time: what it trains, loses and costs under its policy.

    FILE is a job, or a scenario with `job`, `faults`, `fleet`, `days` and more; without it Holdfast's defaults.
    With --journal, --policy or --job it is a run that really happened: first under its own policy, to say how well
    that is reproduced, then under the other; ends with 1 when the other is worse. Ctrl-C keeps what is done.
    """
    if given["listed"]:
        return emit(form, _presets(), table=_presets_text, names=preset_names())
    run = Run(given, form)
    files = [each for each in words if "=" not in each]
    sweep = [*given["sweep"], *(each for each in words if "=" in each)]
    if (flag := _of_a_run(target, given)) is not None:
        _only(given, files, sweep, flag)
        if given["policy"] is None:
            _none_of({"--brief": given["brief"]}, "a run without --policy")
        return run.replay(target if given["journal"] is None else replace(target, state_dir=given["journal"]))
    _none_of({"--brief": given["brief"]}, "a job that is no run")
    if given["compare"]:
        _none_of({"FILE": files, "--sweep": sweep}, "--compare")
        return run.compare(*given["compare"])
    if len(files) > 1:
        raise InvalidInput(Problem("FILE", files[1], "give one file; --compare takes two"))
    draft = run.draft(Path(files[0]) if files else None)
    return run.sweep(draft, sweep) if sweep else run.judge(draft)


def _of_a_run(target: Target, given: dict[str, Any]) -> str | None:
    """The option that says that it is about a run that really happened."""
    said = {f"--{name}": given[name] for name in ("journal", "policy")}
    said |= {"--job": target.job, "--state-dir": target.state_dir, "--watchdog": target.watchdog}
    said |= {"--namespace": target.namespace, "--context": target.context, "--kubeconfig": target.kubeconfig}
    return next((flag for flag, value in said.items() if value is not None), None)


class Run:
    """One call, with what was given."""

    def __init__(self, given: dict[str, Any], form: Format) -> None:
        self._given = given
        self._form = form
        self._where: Where = where(given["cluster"], given["workers"])
        if given["plot"] is not None:
            check_chart(given["plot"])

    def draft(self, file: Path | None) -> Draft:
        """What the file says, with the options in place of it. Raises InvalidInput."""
        draft = draft_of(file)
        if self._given["tables"]:
            draft.use(self._given["tables"])
        for name in ("nodes", "spares", "days"):
            if self._given[name] is not None:
                draft.set(name, self._given[name])
        if self._given["price"] is not None:
            draft.set("fleet.gpu_hour", self._given["price"])
        for word in self._given["settings"]:
            name, has_value, value = word.partition("=")
            if not has_value:
                raise InvalidInput(Problem("--set", word, "give NAME=VALUE, as times.load_s=40"))
            draft.set(name, value)
        return draft

    def judge(self, draft: Draft) -> ExitCode:
        """One policy."""
        scenario = draft.scenario()
        found = self._lived([scenario], draft.seeds)
        told = verdict(draft.says, scenario, found.outcomes[0])
        emit(self._form, told, table=verdict_text, names=[draft.says])
        return self._end(found, verdict_bars(told))

    def compare(self, first: Path, second: Path) -> ExitCode:
        """Two policies in the same fleets."""
        drafts = [self.draft(first), self.draft(second)]
        names = [each.says for each in drafts]
        if names[0] == names[1]:
            names = [str(first), str(second)]
        scenarios = [each.scenario() for each in drafts]
        found = self._lived(scenarios, max(each.seeds for each in drafts))
        sides = [Side(*each) for each in zip(names, scenarios, found.outcomes, strict=True)]
        one, other = (verdict(each.says, each.scenario, each.outcomes) for each in sides)
        told = Compared(compared(sides[0], sides[1], self._given["by"]), (one, other))
        emit(self._form, told, table=lambda each: comparison_text(each.comparison), names=[told.comparison.winner])
        return self._end(found, [*verdict_bars(one), *verdict_bars(other)])

    def sweep(self, draft: Draft, words: Sequence[str]) -> ExitCode:
        """Every combination of settings, the best first."""
        tried: list[tuple[Point, Scenario]] = []
        for point in points(axes(words)):
            each = draft.copy(says(point))
            for name, value in point.items():
                each.set(name, value)
            tried.append((point, each.scenario()))
        found = self._lived([scenario for _, scenario in tried], draft.seeds)
        sides = [
            (point, Side(says(point), scenario, outcomes))
            for (point, scenario), outcomes in zip(tried, found.outcomes, strict=True)
            if outcomes
        ]
        by = self._given["by"]
        told = ranked(sides, by)
        emit(
            self._form,
            told,
            table=lambda each: ranking_text(each, by),
            names=[says(each.point) for each in told],
        )
        return self._end(found, ranking_bars(told, by))

    def replay(self, target: Target) -> ExitCode:
        """A run that happened."""
        judged_by(self._given["by"])
        try:
            run = recorded(journal_of(target))
        except Untrained:
            self._write_brief(Brief(Judgement.NOT_JUDGED, "the run has trained no step that was kept"))
            raise
        scenarios, names = [run.scenario(run.policy)], ["as it was"]
        if (file := self._given["policy"]) is not None:
            names.append(file.stem)
            scenarios.append(run.scenario(draft_of(file).policy()))
        found = self._lived(scenarios, self._given["seeds"] or draft_of(None).seeds)
        sides = [Side(*each) for each in zip(names, scenarios, found.outcomes, strict=True)]
        told = replayed(run, sides[0], sides[1] if len(sides) > 1 else None, self._given["by"])
        if len(sides) > 1:
            self._write_brief(brief_of(told))
        emit(self._form, told, table=replayed_text, names=[told.says])
        bars = [bar for each in sides for bar in verdict_bars(verdict(each.says, each.scenario, each.outcomes))]
        code = self._end(found, bars)
        return ExitCode.FAILED if code is ExitCode.OK and told.says == "worse" else code

    def _write_brief(self, brief: Brief) -> None:
        """Where it is asked for. Raises Unavailable."""
        if (file := self._given["brief"]) is not None:
            try:
                file.write_bytes(msgspec.json.encode(brief))
            except OSError as error:
                raise Unavailable(f"--brief {file} cannot be written: {error.strerror}") from error

    def _lived(self, scenarios: Sequence[Scenario], seeds: int) -> Gathered:
        """Raises InvalidInput before anything runs where no figure decides, KeyboardInterrupt where it was broken
        off before there was anything to tell of.
        """
        deciding(self._given["by"], scenarios)
        first = self._given["first_seed"]
        count = self._given["seeds"] or seeds
        found = gathered(self._where, _live(), scenarios, range(first, first + count))
        enough = any(found.outcomes) if len(scenarios) > 2 else all(found.outcomes)
        if not found.is_whole and not enough:
            raise KeyboardInterrupt
        return found

    def _end(self, found: Gathered, bars: Sequence[Bars]) -> ExitCode:
        if self._given["plot"] is not None:
            write_chart(self._given["plot"], bars)
            remark(f"drawn to {self._given['plot']}")
        if found.is_whole:
            return ExitCode.OK
        remark(f"broken off: this is of the {sum(len(each) for each in found.outcomes)} runs that were done")
        return ExitCode.INTERRUPTED


def _live() -> Live:
    from holdfast.simulator.live import live

    return live


def _only(given: dict[str, Any], files: Sequence[str], sweep: Sequence[str], flag: str) -> None:
    """A recorded run has its faults, size and times already."""
    others = {name: given[name] for name in ("nodes", "spares", "days", "price", "compare")}
    _none_of(
        {"FILE": files, "--sweep": sweep, "--preset": given["tables"], "--set": given["settings"]}
        | {f"--{name}": value for name, value in others.items()},
        flag,
    )


def _none_of(others: dict[str, Any], flag: str) -> None:
    for name, value in others.items():
        if value:
            raise InvalidInput(Problem(name, value, f"leave it out beside {flag}"))


class Preset(msgspec.Struct, frozen=True):
    """A published table of failures; `rate` is for 1,000 node-days, of all its kinds."""

    name: str
    rate: float
    kinds: int
    says: str
    source: str


def _presets() -> list[Preset]:
    told = []
    for name in preset_names():
        of = preset(name)
        rates = rates_of(of, name)
        told.append(Preset(name, sum(each.rate for each in rates), len(rates), of.says, of.source))
    return told


def _presets_text(found: Sequence[Preset]) -> str:
    rows = [(each.name, f"{each.rate:.3g}", str(each.kinds), each.says, each.source) for each in found]
    return table(("PRESET", "PER 1000 NODE-DAYS", "KINDS", "WHAT", "SOURCE"), rows)
