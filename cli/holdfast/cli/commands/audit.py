"""`holdfast audit`: probe a script's model on a small batch before the job starts."""

import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

import click
import msgspec

from holdfast.api.audit import Audit, Probe, ProbeAnswer, Soundness
from holdfast.api.errors import InvalidInput, Problem, Unavailable
from holdfast.cli.output import UNKNOWN, ExitCode, Format, emit, format_option, number, remark, table

_EXIT_CODES: Final = {
    Soundness.SOUND: ExitCode.OK,
    Soundness.SUSPECT: ExitCode.FAILED,
    Soundness.UNKNOWN: ExitCode.UNAVAILABLE,
}
WHAT_TO_CHANGE: Final = (
    "What to change (then audit again: of several places most probes name the first, or the worst):"
)


@click.command()
@click.argument("script", type=click.Path())
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--probes", help=f"Only these, with commas between: {', '.join(Probe)}. Default: all it offers.")
@click.option("--entry", default="audit", show_default=True, help="The function of SCRIPT that returns a Subject.")
@format_option
def audit(script: str, arguments: tuple[str, ...], probes: str | None, entry: str, form: Format) -> ExitCode:
    """Probe the model of SCRIPT on a small batch: causality, reductions, determinism and more.

    SCRIPT defines a function `audit` that returns a holdfast.trainer.probes.Subject. ARGUMENTS, after --, are the
    script's own. Exits with 0 when all answers are sound, 1 when one is suspect, 2 when the script offers nothing
    to probe, and 3 when none is suspect and one is unknown.
    """
    asked = _asked(probes)
    if importlib.util.find_spec("torch") is None:
        raise Unavailable("audit needs torch, which is not installed here: pip install 'holdfast[torch]' adds it")
    command = [sys.executable, "-m", "holdfast.trainer.probes", "--entry", entry, "--probes", ",".join(asked)]
    # In a process of its own: the script may do anything, and this one stays without torch.
    ended = subprocess.run([*command, "--", script, *arguments], stdout=subprocess.PIPE, check=False)
    if ended.returncode == ExitCode.INVALID:
        return ExitCode.INVALID  # it has said why
    if ended.returncode or not ended.stdout:
        end = f"signal {-ended.returncode}" if ended.returncode < 0 else f"exit code {ended.returncode}"
        raise Unavailable(f"the audit of {script} ended with {end} before it had answered")
    found = msgspec.json.decode(ended.stdout, type=Audit)
    for probe, why in found.not_run.items():
        remark(f"{probe} was not probed: {why}")
    suspect = [f"{each.probe}/{each.where}" for each in found.answers if each.verdict is Soundness.SUSPECT]
    emit(form, found, table=_text, names=suspect)
    return _EXIT_CODES[found.verdict]


def _asked(probes: str | None) -> Sequence[Probe]:
    """The probes by their names. Raises InvalidInput for one that is not there."""
    names = [each.strip() for each in (probes or "").split(",") if each.strip()]
    for name in names:
        if name not in list(Probe):
            raise InvalidInput(Problem("--probes", name, f"write some of {', '.join(Probe)}, with commas between"))
    return [Probe(each) for each in names]


def _text(found: Audit) -> str:
    """A table of the answers, and below it what each that is not sound says and asks for."""
    rows = [(each.verdict, each.probe, _figure(each), each.where or "-", each.says) for each in found.answers]
    lines = [table(("VERDICT", "PROBE", "FIGURE", "WHERE", "SAYS"), rows)]
    places: dict[tuple[Probe, str], list[str]] = {}  # by what is advised, where it holds
    for each in found.answers:
        if each.change:
            places.setdefault((each.probe, each.change), []).extend([each.where] if each.where else [])
    changes = [f"{probe}{_places(where)}: {change}" for (probe, change), where in places.items()]
    return "\n".join([*lines, *(["", WHAT_TO_CHANGE, *changes] if changes else [])])


def _places(where: Sequence[str]) -> str:
    return f" in {', '.join(where)}" if where else ""


def _figure(answer: ProbeAnswer) -> str:
    return UNKNOWN if answer.figure is None else f"{number(answer.figure)} {answer.unit}"
