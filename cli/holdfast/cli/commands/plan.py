"""`holdfast plan`: which layout of a model on how many GPUs, how fast, how dear, and what failures make of it."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import click
import msgspec
import yaml

from holdfast.api.decoding import decode_json
from holdfast.api.errors import InvalidInput, Malformed, Problem
from holdfast.api.fleet import FleetReport
from holdfast.api.trainingjob import read_trainingjob
from holdfast.cli.output import ExitCode, Format, emit, format_option, pairs, remark, table
from holdfast.planner.fleetrate import failures_of
from holdfast.planner.jobfile import job_of
from holdfast.planner.notes import notes_of
from holdfast.planner.outcome import outcome_of
from holdfast.planner.plan import Option, Plan, Question, Reason, plan, reasons
from holdfast.planner.quantity import Quantity, shown
from holdfast.planner.questionfile import Sections, question_of, read_sections

SHORT: Final[Mapping[str, str]] = {
    "tp": "tensor",
    "pp": "pipeline",
    "cp": "context",
    "ep": "expert",
    "dp": "data",
    "mb": "micro_batch",
}

ADAPTER_RANK: Final = "adapter_rank"
"""Beside a model's `config`, whichever that is."""


class _Readable(yaml.SafeDumper):
    """What has several lines is written as such."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Readable.add_representer(str, _text)


class Answer(msgspec.Struct, frozen=True):
    """What is written: the best options, how many there are and how many fall, by reason."""

    options: tuple[Option, ...]
    fits: int
    rejected: tuple[Reason, ...]
    failures_a_day: float
    spares: int
    checkpoint_every_s: float
    effective_share: float
    share_in_groups: float | None = None
    goodput_in_groups: float | None = None


@click.command("plan")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--model", metavar="FILE", help="config.json of Hugging Face; or `model` in FILE.")
@click.option("--gpu", metavar="NAME", help="As H100; or `cluster.gpu`, also with your own numbers.")
@click.option("--gpus", metavar="N", help="How many; `cluster.gpus`.")
@click.option("--price", metavar="AMOUNT", help="Of a GPU and hour; `cluster.price`.")
@click.option("--sequence", metavar="N", help="Tokens of a sequence; `training.sequence`.")
@click.option("--batch", metavar="N", help="Sequences of a step; `training.batch`.")
@click.option("--tokens", metavar="N", help="To train with, as 2e12; `training.tokens`.")
@click.option("--fleet", metavar="FILE", help="`reliability.rate` from what `holdfast fleet -o json` wrote.")
@click.option("--layout", metavar="tp=8,pp=4", help="Only layouts with these degrees: tp, pp, cp, ep, dp, mb.")
@click.option("--top", type=click.IntRange(1), default=5, show_default=True, help="How many options to show.")
@click.option("--explain", is_flag=True, help="How each figure of the best option comes about, with sources.")
@click.option(
    "--write", metavar="JOB.YAML", type=click.Path(path_type=Path), help="Write the best option's job file."
)
@format_option
def plan_command(
    file: Path | None,
    layout: str | None,
    top: int,
    explain: bool,
    write: Path | None,
    form: Format,
    **given: str | None,
) -> ExitCode:
    """Judge every layout of a model on a cluster: memory, step time, MFU, days, money, and why others fall.

    FILE has the sections model, cluster, training, reliability, reached and spot, or is the job of a plan; options
    replace what it says.
    Ends with 1 when no layout fits.
    """
    question = _question(file, given)
    found = plan(question, _pinned(layout))
    if write is not None and found.options:
        _write(write, question, found)
    if explain and found.options:
        best = found.options[0]
        of_failures = (found.failures, found.spares, found.interval, found.effective)
        outcome, notes = outcome_of(question, found, best), notes_of(question, best)
        groups = (found.groups.goodput,) if found.groups is not None else ()
        told = (best.step, best.memory, *of_failures, *groups, *outcome, *notes)
        return emit(form, told, table=_explained, names=[each.name for each in told])
    emit(form, _answer(found, top), table=plan_text, names=[str(each.layout) for each in found.options[:top]])
    return ExitCode.OK if found.options else ExitCode.FAILED


def _explained(told: Sequence[Quantity]) -> str:
    return "\n".join(line for each in told for line in each.lines())


def plan_text(answer: Answer) -> str:
    """As tables: the options, what failures make of them, and why the others fall."""
    every = answer.checkpoint_every_s
    headers = ("LAYOUT", "MEMORY", "STEP", "MFU", "TOKENS/S", "DAYS", "MONEY")
    parts = [table(headers, [_cells(each) for each in answer.options])] if answer.options else ["no layout fits"]
    parts.append(
        pairs(
            [
                ("failures", f"{answer.failures_a_day:.3g} a day"),
                ("spare nodes", str(answer.spares)),
                ("checkpoint every", shown(every, "s") if math.isfinite(every) else "none is due"),
                ("effective share of time", f"{answer.effective_share:.1%}"),
                *_of_groups(answer),
                (
                    "layouts that fit",
                    f"{answer.fits} of {answer.fits + sum(each.count for each in answer.rejected)}",
                ),
            ]
        )
    )
    if answer.rejected:
        rows = [(str(each.count), each.because, each.example) for each in answer.rejected]
        parts.append(table(("REJECTED", "BECAUSE OF", "AS"), rows))
    return "\n\n".join(parts)


def _of_groups(answer: Answer) -> Sequence[tuple[str, str]]:
    if answer.share_in_groups is None or answer.goodput_in_groups is None:
        return ()
    goodput = f"{answer.goodput_in_groups:.1%} counting groups that are away"
    return (("in replica groups", f"{answer.share_in_groups:.1%}, {goodput}"),)


def _cells(option: Option) -> Sequence[str]:
    days, money = (
        "?" if each is None else "never" if math.isinf(each) else f"{each:,.{digits}f}"
        for each, digits in ((option.days, 1), (option.money, 0))
    )
    return (
        str(option.layout),
        shown(option.memory.value, "bytes"),
        shown(option.step.value, "s"),
        f"{option.mfu:.1%}",
        f"{option.tokens_per_s:,.0f}",
        days,
        money,
    )


def _answer(found: Plan, top: int) -> Answer:
    return Answer(
        options=found.options[:top],
        fits=len(found.options),
        rejected=reasons(found.rejected),
        failures_a_day=found.failures.value,
        spares=round(found.spares.value),
        checkpoint_every_s=found.interval.value,
        effective_share=found.effective.value,
        share_in_groups=found.groups.trains.value if found.groups is not None else None,
        goodput_in_groups=found.groups.goodput.value if found.groups is not None else None,
    )


def _question(file: Path | None, given: Mapping[str, str | None]) -> Question:
    """What the file says, with the options in place of it."""
    sections: Sections = read_sections(file) if file is not None else {}
    for name, value in given.items():
        if value is None:
            continue
        if name == "model":
            adapted = {name: each for name, each in sections.get("model", {}).items() if name == ADAPTER_RANK}
            sections["model"] = {"config": str(Path(value).absolute()), **adapted}
            continue
        if name == "fleet":
            continue  # of nodes whose size the file says, or an option
        section = "cluster" if name in ("gpu", "gpus", "price") else "training"
        sections.setdefault(section, {})[name] = value
    if "model" not in sections:
        raise InvalidInput(Problem("--model", None, "give a config.json, or a FILE with a section `model`"))
    question = question_of(sections, file.parent if file is not None else Path())
    if (fleet := given.get("fleet")) is not None:
        rate = _rate_in(Path(fleet), question.cluster.per_node)
        question = msgspec.structs.replace(
            question, reliability=msgspec.structs.replace(question.reliability, rate=rate)
        )
    return question


def _rate_in(path: Path, per_node: int) -> float:
    """Failures for 1,000 node-days in a report of a fleet."""
    try:
        report = decode_json(path.read_bytes(), FleetReport)
    except (OSError, Malformed) as error:
        fix = f"give what `holdfast fleet -o json` wrote: {error}"
        raise InvalidInput(Problem("--fleet", str(path), fix)) from None
    found = failures_of(report, per_node)
    if found is None or not found.rate:
        raise InvalidInput(Problem("--fleet", str(path), "leave it out: no failure was seen in it yet"))
    return found.rate


def _pinned(layout: str | None) -> dict[str, int]:
    pinned = {}
    for each in (layout or "").split(","):
        name, _, number = each.strip().partition("=")
        if not each.strip():
            continue
        if name not in SHORT or not number.isdecimal() or int(number) < 1:
            raise InvalidInput(Problem("--layout", each, f"give NAME=NUMBER, NAME one of {', '.join(SHORT)}"))
        if SHORT[name] in pinned:
            raise InvalidInput(Problem("--layout", layout, f"give {name} once"))
        pinned[SHORT[name]] = int(number)
    return pinned


def _write(path: Path, question: Question, found: Plan) -> None:
    if path.exists():
        raise InvalidInput(Problem("--write", str(path), "give a file that is not there yet"))
    job = job_of(question, found, found.options[0], path.stem)
    read_trainingjob(job)
    try:
        path.write_text(yaml.dump(dict(job), Dumper=_Readable, sort_keys=False), encoding="utf-8")
    except OSError as error:
        raise InvalidInput(
            Problem("--write", str(path), f"give a file that can be written: {error.strerror}")
        ) from None
    remark(f"written to {path}: set its entrypoint")
