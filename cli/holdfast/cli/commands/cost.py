"""`holdfast cost`: where the GPU-hours and the money of jobs went, from their ledgers."""

import csv
import dataclasses
import io
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Final

import click
import msgspec

from holdfast.api.errors import InvalidInput, Problem
from holdfast.api.ledger import NOTHING, Amount, Entry, LedgerReport, Row
from holdfast.cli.ledgerfile import read_ledger, write_ledger
from holdfast.cli.output import ExitCode, Format, emit, remark, table
from holdfast.cli.site import open_site
from holdfast.cli.target import JobWord, Target, target_options

NOBODY: Final = "-"


class By(StrEnum):
    """What the lines are told by."""

    PHASE = "phase"
    INCIDENT = "incident"
    CAUSE = "cause"
    NODE = "node"
    DAY = "day"
    TEAM = "team"
    JOB = "job"


KEYS: Final[dict[By, Callable[[LedgerReport, Entry], str]]] = {
    By.PHASE: lambda report, entry: entry.row.value,
    By.INCIDENT: lambda report, entry: entry.incident,
    By.CAUSE: lambda report, entry: entry.cause,
    By.NODE: lambda report, entry: entry.node,
    By.DAY: lambda report, entry: entry.day,
    By.TEAM: lambda report, entry: report.team,
    By.JOB: lambda report, entry: report.job,
}


class CostLine(msgspec.Struct, frozen=True):
    """GPU time and money of one key. `money` is None where the job has no price; `share` is of all GPU time."""

    key: str
    gpu_hours: float
    share: float
    money: float | None = None
    currency: str = ""


class CostTable(msgspec.Struct, frozen=True):
    """Lines that sum to the totals, one total for each currency."""

    by: str
    lines: tuple[CostLine, ...]
    totals: tuple[CostLine, ...]


def cost_table(reports: Sequence[LedgerReport], by: By) -> CostTable:
    """The ledgers by a key. Money of different currencies is never added."""
    sums: dict[tuple[str, str], Amount] = {}
    totals: dict[str, Amount] = {}
    for report in reports:
        for entry in report.entries:
            key, amount = KEYS[by](report, entry) or NOBODY, Amount(entry.gpu_us, 0, entry.money)
            sums[key, report.currency] = sums.get((key, report.currency), NOTHING) + amount
            totals[report.currency] = totals.get(report.currency, NOTHING) + amount
    whole_us = sum(each.gpu_us for each in totals.values())
    lines = [_line(key, amount, currency, whole_us) for (key, currency), amount in sums.items()]
    order = [each.value for each in Row]
    if by is By.PHASE:
        lines.sort(key=lambda each: order.index(each.key))
    elif by is By.DAY:
        lines.sort(key=lambda each: (each.key.isalpha() is False, each.key))  # what is earlier than all days first
    else:
        lines.sort(key=lambda each: (each.key == NOBODY, -each.gpu_hours, each.key))
    told = [_line("total", amount, currency, whole_us) for currency, amount in totals.items()]
    return CostTable(by.value, tuple(lines), tuple(told))


def _line(key: str, amount: Amount, currency: str, whole_us: int) -> CostLine:
    share = amount.gpu_us / whole_us if whole_us else 0.0
    return CostLine(key, amount.gpu_hours, share, amount.price if currency else None, currency)


def cost_text(found: CostTable) -> str:
    """As a table, with the totals last."""
    headers = (found.by.upper(), "GPU-HOURS", "SHARE", "MONEY")
    return table(headers, [_cells(each) for each in (*found.lines, *found.totals)])


def _cells(line: CostLine) -> tuple[str, str, str, str]:
    money = f"{line.money:,.2f} {line.currency}" if line.money is not None else NOBODY
    return line.key, f"{line.gpu_hours:,.4f}", f"{line.share:.1%}", money


def cost_csv(found: CostTable) -> str:
    """As comma-separated values, without the totals: they are the sums of the columns."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow((found.by, "gpu_hours", "share", "money", "currency"))
    for each in found.lines:
        money = "" if each.money is None else f"{each.money:.9f}"
        writer.writerow((each.key, f"{each.gpu_hours:.9f}", f"{each.share:.6f}", money, each.currency))
    return out.getvalue().rstrip("\n")


@click.command()
@target_options(JobWord.ARGUMENT, of_many=True)
@click.option(
    "--by",
    type=click.Choice([each.value for each in By]),
    default=By.PHASE.value,
    show_default=True,
    help="What the lines are told by; node is who is to blame, or who had no ranks.",
)
@click.option("--file", "files", metavar="URI", multiple=True, help="Read ledger.json there in place of a job.")
@click.option("--save", metavar="URI", help="Also write the job's ledger there, as ledger.json.")
@click.option(
    "-o",
    "--output",
    "form",
    type=click.Choice(["table", "csv", "json", "yaml"]),
    default="table",
    show_default=True,
    help="How to write the answer.",
)
def cost(target: Target, by: str, files: tuple[str, ...], save: str | None, form: str) -> ExitCode:
    """Where the GPU-hours and the money of JOB went; without JOB, of all jobs there are.

    Every GPU-second is in one line, and the lines sum to what was held. Of a deleted job the watchdog tells what
    it had cost; without a watchdog the file beside its checkpoints does: --file URI, as often as there are jobs.
    """
    reports = [read_ledger(each) for each in files] if files else list(_asked(target))
    if save is not None:
        if len(reports) != 1:
            raise InvalidInput(Problem("--save", save, f"name one job; there are {len(reports)}"))
        remark(f"written to {write_ledger(save, reports[0])}")
    found = cost_table(reports, By(by))
    if form == "csv":
        click.echo(cost_csv(found))
        return ExitCode.OK
    return emit(Format(form), found, table=cost_text, names=[])


def _asked(target: Target) -> Iterable[LedgerReport]:
    """The ledgers of the job that is named, or of all there are. Raises as `JobSource`."""
    site = open_site(target)
    if target.job is not None:
        yield site.source().ledger()
        return
    names_place = target.namespace is not None or target.all_namespaces
    for each in site.statuses():
        namespace = each.job.partition("/")[0] if names_place else None
        one = dataclasses.replace(target, job=each.job, namespace=namespace, all_namespaces=False)
        yield open_site(one).source().ledger()
