"""`holdfast runbook`: the checks an expert would make for a symptom, made."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import click

from holdfast.api.errors import InvalidInput, Problem, Unavailable
from holdfast.cli.commands.job import duration_s
from holdfast.cli.output import ExitCode, Format, emit, format_option, remark, table
from holdfast.cli.site import open_site
from holdfast.cli.target import (
    DEFAULT_HOLDFAST_NAMESPACE,
    DEFAULT_HOLDFAST_SERVICE,
    JobWord,
    Program,
    Target,
    target_options,
)
from holdfast.console.checkfiles import checks_in
from holdfast.console.runbook.answer import Answer, Verdict
from holdfast.console.runbook.command import Typed
from holdfast.console.runbook.examine import examine
from holdfast.console.runbook.known import WINDOW_S, Known, duration
from holdfast.console.runbook.symptom import SAYS, Symptom, fitting

_INDENT: Final = " " * 9


@click.command()
@click.argument("symptom", required=False)
@click.option(
    "--since",
    "window_s",
    metavar="DURATION",
    callback=duration_s,
    help="How far back to look, such as 30m.  [default: 2h]",
)
@click.option(
    "--checks",
    "folder",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="A folder of further checks, run with the built-in ones.",
)
@target_options(JobWord.OPTION)
@format_option
def runbook(
    symptom: str | None, window_s: float | None, folder: Path | None, target: Target, form: Format
) -> ExitCode:
    """Make the checks an expert would make for SYMPTOM, the likeliest suspect first: each with its evidence, and
    the command to run next. Without SYMPTOM: which there are, and which the job shows.

    Unknown is said where nobody can tell. "Proved" is what a check names, when it is certain; that the symptom
    comes of it is yours to judge. Of a job that is over the hours before its end are looked at. Exits with 0 when
    all is fine, 1 when something is suspect, 3 when nothing is suspect and something is unknown.
    """
    further = checks_in(folder) if folder is not None else ()
    window_s = WINDOW_S if window_s is None else window_s
    if symptom is None:
        return _symptoms(target, window_s, form)
    asked = _asked(symptom)
    known = _known(target, window_s)
    typed = typed_at(target, known.job)
    answers = examine(asked, known, further)
    value = {
        "job": known.job,
        "symptom": asked.value,
        "checks": [each.shown(typed.line(each.next)) for each in answers],
    }
    suspects = [each for each in answers if each.verdict is Verdict.SUSPECT]
    names = [f"check/{each.id}" for each in suspects]
    emit(form, value, table=lambda _: runbook_text(asked, known, answers, typed), names=names)
    if suspects:
        return ExitCode.FAILED
    is_unknown = any(each.verdict is Verdict.UNKNOWN for each in answers)
    return ExitCode.UNAVAILABLE if is_unknown else ExitCode.OK


def runbook_text(symptom: Symptom, known: Known, answers: Sequence[Answer], typed: Typed) -> str:
    """Suspects whole, then what is unknown, then what is fine, a line each."""
    of = {verdict: [each for each in answers if each.verdict is verdict] for verdict in Verdict}
    counts = ", ".join(f"{len(of[each])} {each}" for each in (Verdict.SUSPECT, Verdict.UNKNOWN, Verdict.FINE))
    lines = [f"{known.job}, {symptom}: {SAYS[symptom]}. {len(answers)} checks over {known.span}: {counts}."]
    for each in of[Verdict.SUSPECT]:
        sure = " (proved)" if each.proved else ""
        lines += ["", f"{'suspect':9}{each.title}{sure}", f"{_INDENT}{each.evidence}"]
        lines.append(f"{_INDENT}$ {typed.line(each.next)}")
    lines += [""] if of[Verdict.UNKNOWN] else []
    for each in of[Verdict.UNKNOWN]:
        lines += [f"{'unknown':9}{each.title}? {each.evidence}", f"{_INDENT}$ {typed.line(each.next)}"]
    lines += [""] if of[Verdict.FINE] else []
    # Its title says what would be wrong: nobody is to read that of what is not.
    lines += [f"{'fine':9}{each.id}: {each.evidence}" for each in of[Verdict.FINE]]
    return "\n".join(lines)


def _symptoms(target: Target, window_s: float, form: Format) -> ExitCode:
    """The list, with what the job shows of it: Unknown, as stderr says, where the job cannot be read."""
    fits: Mapping[Symptom, str] = {}
    code = ExitCode.OK
    try:
        fits = fitting(_known(target, window_s))
    except Unavailable as error:
        remark(f"{error}; which of them the job shows is unknown")
        code = ExitCode.UNAVAILABLE
    value = [{"symptom": each.value, "says": SAYS[each], "fits": fits.get(each)} for each in _in_order(fits)]
    emit(form, value, table=lambda _: symptoms_text(fits), names=[f"symptom/{each}" for each in fits])
    return code


def symptoms_text(fits: Mapping[Symptom, str]) -> str:
    """Those that fit first."""
    rows = [(each.value, SAYS[each], fits.get(each, "")) for each in _in_order(fits)]
    return table(("SYMPTOM", "WHEN", "THE JOB SHOWS IT NOW"), rows)


def _in_order(fits: Mapping[Symptom, str]) -> Sequence[Symptom]:
    return [*fits, *(each for each in Symptom if each not in fits)]


def _asked(symptom: str) -> Symptom:
    """Raises InvalidInput naming those there are."""
    if symptom not in list(Symptom):
        raise InvalidInput(Problem("symptom", symptom, f"write one of {', '.join(Symptom)}"))
    return Symptom(symptom)


def _known(target: Target, window_s: float) -> Known:
    from holdfast.cli.knowledge import known_of

    if window_s <= 0:
        raise InvalidInput(
            Problem("--since", f"{window_s:g} s", f"give a time above 0, such as {duration(WINDOW_S)}")
        )
    return known_of(open_site(target).source(), window_s)


def typed_at(target: Target, job: str) -> Typed:
    """How the commands that follow name this job, where this one was typed."""
    namespace, _, name = job.partition("/")
    place: list[str] = []
    for flag, value in (
        ("--context", target.context),
        ("--kubeconfig", target.kubeconfig),
        ("--state-dir", target.state_dir),
        ("--watchdog", target.watchdog),
        ("--token-file", target.token_file),
        ("--ca-file", target.ca_file),
        ("--holdfast-namespace", _unless(target.holdfast_namespace, DEFAULT_HOLDFAST_NAMESPACE)),
        ("--holdfast-service", _unless(target.holdfast_service, DEFAULT_HOLDFAST_SERVICE)),
    ):
        place += [] if value is None else [flag, str(value)]
    is_in_cluster = target.program is Program.KUBECTL or target.namespace is not None
    if is_in_cluster:
        return Typed(target.program.value, name, ("-n", namespace, *place))
    return Typed(target.program.value, job if target.job is not None else None, place)


def _unless(value: str, default: str) -> str | None:
    return None if value == default else value
