"""`holdfast postmortem`: the document about an incident, and the check that finds it again."""

import os
import tempfile
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

import click

from holdfast.api.errors import InvalidInput, Problem, Unavailable
from holdfast.api.incident import Incident
from holdfast.cli.casefile import case_of, remark_unread
from holdfast.cli.commands.job import duration_s
from holdfast.cli.output import ExitCode, remark
from holdfast.cli.postmortem import html, markdown
from holdfast.cli.postmortem.case import Case
from holdfast.cli.postmortem.composing import postmortem as about_one
from holdfast.cli.postmortem.composing import report
from holdfast.cli.postmortem.document import Document
from holdfast.cli.site import open_site
from holdfast.cli.target import JobWord, Target, target_options

NEWEST_SHOWN: Final = 5


class Form(StrEnum):
    MARKDOWN = "md"
    HTML = "html"


FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("incident", required=False)
@click.option(
    "--since", "window_s", metavar="DURATION", callback=duration_s, help="All incidents of so long, such as 24h."
)
@click.option(
    "--format",
    "form",
    type=click.Choice([each.value for each in Form]),
    help="How to write it.  [default: by the name of --output, else md]",
)
@click.option("--output", type=FILE, help="Write it to this file; else, and with -, to stdout.")
@click.option("--distill", type=FILE, help="Write a check to this file that finds the same fault again.")
@target_options(JobWord.OPTION)
def postmortem(
    incident: str | None,
    window_s: float | None,
    form: str | None,
    output: Path | None,
    distill: Path | None,
    target: Target,
) -> ExitCode:
    """Write what a team writes after INCIDENT ("last": the newest), or after all of the time given by --since.

    Timeline, cause and how sure it is, cost, what detected it and how fast, what was done, what could have been
    faster and which setting would have helped, what had changed before, plots. Nothing of what a job wrote is
    markup in it, and it asks no host for anything. What could not be read is said in it.

    --distill writes a check of the runbook, to be run with `runbook --checks DIR`, instead of the document, unless
    --output is given too.
    """
    output = None if output == Path("-") else output
    if (incident is None) is (window_s is None):
        raise InvalidInput(Problem("incident", incident, "name an incident, or give --since, and not both"))
    if distill is not None and incident is None:
        raise InvalidInput(Problem("--distill", str(distill), "name the incident that the check is to find again"))
    case = case_of(open_site(target).source())
    if incident is None:
        assert window_s is not None
        since = case.now - window_s
        document = report(case, [each for each in case.incidents if each.detected_at >= since], since)
    else:
        found = incident_named(case.incidents, incident)
        if distill is not None:
            _distil(found, distill)
            if output is None:
                return ExitCode.OK
        document = about_one(case, found)
    _write(document, _form(form, output), output, case)
    return ExitCode.OK


def incident_named(incidents: Sequence[Incident], named: str) -> Incident:
    """The one of that id, or the newest for "last". Raises InvalidInput naming those there are."""
    if not incidents:
        raise InvalidInput(Problem("incident", named, "this job has had no incident"))
    found = incidents[-1] if named == "last" else next((each for each in incidents if each.id == named), None)
    if found is None:
        newest = ", ".join(each.id for each in incidents[-NEWEST_SHOWN:])
        raise InvalidInput(Problem("incident", named, f"the newest are {newest}"))
    return found


def _form(said: str | None, output: Path | None) -> Form:
    if said is not None:
        return Form(said)
    return Form.HTML if output is not None and output.suffix in (".html", ".htm") else Form.MARKDOWN


def _write(document: Document, form: Form, output: Path | None, case: Case) -> None:
    text = html.written(document) if form is Form.HTML else markdown.written(document)
    if output is None:
        click.echo(text, nl=False)
    else:
        put(output, text)
        remark(f"written to {output}")
    remark_unread(case)


def _distil(incident: Incident, file: Path) -> None:
    from holdfast.console.runbook.distilling import distilled
    from holdfast.console.runbook.written import read_check, written

    text = written(distilled(incident))
    read_check(text.encode(), str(file))  # what is written can be read
    put(file, text)
    remark(f"the check is in {file}; `holdfast runbook SYMPTOM --checks {file.parent}` runs it")


def put(file: Path, text: str) -> None:
    """Write the whole file, or nothing; into what is no file (/dev/stdout) as it comes. Raises Unavailable."""
    try:
        file = file.resolve()
        if file.exists() and not file.is_file():
            file.write_text(text, encoding="utf-8", errors="backslashreplace")
            return
        descriptor, beside = tempfile.mkstemp(prefix=f".{file.name}-", dir=file.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as out:
                out.write(text)
            os.chmod(beside, 0o644)
            os.replace(beside, file)
        except BaseException:
            Path(beside).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise Unavailable(f"{file} cannot be written: {error}") from error
