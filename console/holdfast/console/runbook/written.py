"""Checks that somebody wrote as data: a file each, validated before it is run beside the built-in ones.

```yaml
format: 1
id: link-down-in-rack-7
title: A link of rack 7 is down
symptoms: {hung: 30, slow: 20}
needs: any                         # or all
facts:
  - incident: {kind: Hang, cause: did not reach the collective, count: 2}
  - condition: {kind: LinkDown}
  - figure: {name: stepAgeSeconds, above: 60}
  - change: {setting: configuration/lr}
learned: inc-0003 was healed by another node; the cable was changed.
next: ["why {incident}", incidents]
```

A pattern may hold `*`, `?` and `[...]`; it has to fit the whole text, and letters count as they are. Nothing in a
file is run: it names facts that are looked at here.
"""

import math
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, Literal

import msgspec
import yaml

from holdfast.api.condition import ConditionKind
from holdfast.api.errors import InvalidInput, Problem
from holdfast.api.finding import FindingKind
from holdfast.console.runbook.answer import Said, Verdict, fine, hint, named, unknown
from holdfast.console.runbook.byincident import ByIncident, accused
from holdfast.console.runbook.changes import differences
from holdfast.console.runbook.check import Check, places
from holdfast.console.runbook.known import Known
from holdfast.console.runbook.measured import FIGURES
from holdfast.console.runbook.symptom import Symptom

FORMAT: Final = 1
BYTES_MAX: Final = 64 * 1024
READS: Final = (
    "why",
    "incidents",
    "logs",
    "nodes",
    "ranks",
    "status",
    "journal",
    "cost",
    "stacks",
    "flight",
    "doctor",
)
"""What a check may tell somebody to type: commands that only read."""
FILLED: Final = ("incident", "node", "rank")
_COMMAND: Final = re.compile(r"[a-z]+( (--)?[a-z0-9_{}-]+)*")
_LAST: Final = "incidents"

PATTERN_LENGTH_MAX: Final = 512
Pattern = Annotated[str, msgspec.Meta(min_length=1, max_length=PATTERN_LENGTH_MAX)]
Words = Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]


class _Fact(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    pass


class IncidentFact(_Fact, frozen=True):
    """At least `count` incidents of the window, or open ones, of this kind whose words fit: `evidence` one line of
    it, as `source: words`.
    """

    kind: FindingKind
    cause: Pattern = "*"
    evidence: Pattern = "*"
    count: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1


class ConditionFact(_Fact, frozen=True):
    """A condition that holds on some node."""

    kind: ConditionKind


class FigureFact(_Fact, frozen=True):
    """A figure of now beyond a limit; one of the limits is given."""

    name: str
    above: float | None = None
    below: float | None = None


class ChangeFact(_Fact, frozen=True):
    """In the window a round began in which this differed: commit, command, `source files` or SECTION/NAME."""

    setting: Pattern


class Fact(_Fact, frozen=True):
    """Exactly one of them."""

    incident: IncidentFact | None = None
    condition: ConditionFact | None = None
    figure: FigureFact | None = None
    change: ChangeFact | None = None


class WrittenCheck(_Fact, frozen=True):
    """One file. `symptoms` have of a hundred calls about how many it is; `learned` is said when it is suspect."""

    format: Literal[1]
    id: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")]
    title: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    symptoms: Annotated[dict[Symptom, Annotated[int, msgspec.Meta(ge=1, le=100)]], msgspec.Meta(min_length=1)]
    facts: Annotated[tuple[Fact, ...], msgspec.Meta(min_length=1, max_length=32)]
    needs: Literal["any", "all"] = "any"
    learned: Words | None = None
    source: Words | None = None
    next: Annotated[tuple[str, ...], msgspec.Meta(max_length=4)] = ()


def read_check(content: bytes, file: str) -> WrittenCheck:
    """The check in a file. Raises InvalidInput naming the file, the field and what to write."""
    if len(content) > BYTES_MAX:
        raise InvalidInput(Problem(file, f"{len(content)} bytes", f"write at most {BYTES_MAX}"))
    try:
        document: Any = yaml.safe_load(content)
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:
        # Of a value that is none of its own tag (a date 2001-99-99, !!bool abc) PyYAML raises what Python does.
        raise InvalidInput(Problem(file, None, f"write one YAML document: {_first_line(error)}")) from error
    try:
        check = msgspec.convert(document, WrittenCheck, str_keys=True)
        msgspec.json.encode(check)
    except UnicodeEncodeError as error:
        fix = "leave out half a character (\\ud800 to \\udfff): nobody can write it"
        raise InvalidInput(Problem(file, None, fix)) from error
    except msgspec.ValidationError as error:
        fix = "docs/postmortem.md says what a check holds"
        raise InvalidInput(Problem(file, _first_line(error), fix)) from error
    problem = next(_problems(check), None)
    if problem is not None:
        raise InvalidInput(Problem(f"{file}: {problem.field}", problem.value, problem.fix))
    return check


def written(check: WrittenCheck) -> str:
    """The file of a check, which `read_check` reads."""
    document = msgspec.to_builtins(check)
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)


def runnable(check: WrittenCheck) -> Check:
    """The check, to be run with the built-in ones."""
    return Check(
        id=check.id,
        title=check.title,
        likely=check.symptoms,
        look=lambda known: looked(check, known),
        next=(*check.next, _LAST),
        source=check.source or "a check of this installation",
    )


def looked(check: WrittenCheck, known: Known) -> Said:
    """What the check says of a job: suspect where its facts hold, unknown where that cannot be told."""
    said = [_fact(each, known) for each in check.facts]
    suspects = [each for each in said if each.verdict is Verdict.SUSPECT]
    dark = [each for each in said if each.verdict is Verdict.UNKNOWN]
    holds = len(suspects) == len(said) if check.needs == "all" else bool(suspects)
    if holds:
        # Of all that is needed the weakest counts, of one that is enough the strongest.
        pick = min if check.needs == "all" else max
        chosen = pick(suspects, key=lambda each: each.weight)
        words = "; ".join(dict.fromkeys(each.evidence for each in (chosen, *suspects)))
        about = {name: value for each in suspects for name, value in each.about.items()}
        told = f"{words}. Learned: {check.learned}" if check.learned else words
        return msgspec.structs.replace(chosen, evidence=told, about=about)
    cannot_be = check.needs == "all" and len(suspects) + len(dark) < len(said)
    if dark and not cannot_be:
        return unknown(dark[0].evidence)
    return fine("; ".join(each.evidence for each in said if each.verdict is Verdict.FINE))


def _fact(fact: Fact, known: Known) -> Said:
    if fact.incident is not None:
        return _incident(fact.incident, known)
    if fact.condition is not None:
        return _condition(fact.condition, known)
    if fact.figure is not None:
        return _figure(fact.figure, known)
    assert fact.change is not None
    return _change(fact.change, known)


def _incident(fact: IncidentFact, known: Known) -> Said:
    if known.incidents is None:
        return unknown(known.why_unread("incidents"))
    found = [
        each
        for each in known.recent()
        if each.kind is fact.kind
        and fnmatchcase(each.cause, fact.cause)
        and (
            fact.evidence == "*" or any(fnmatchcase(f"{e.source}: {e.says}", fact.evidence) for e in each.evidence)
        )
    ]
    if len(found) < fact.count:
        return fine(f"{len(found)} incidents {fact.kind} of {fact.cause} (in {known.span})")
    weight = ByIncident(frozenset({fact.kind}), "").weight
    newest = max(found, key=lambda each: (weight(known, each), each.detected_at))
    return accused(known, newest, weight(known, newest), len(found))


def _condition(fact: ConditionFact, known: Known) -> Said:
    for node, condition in known.raised():
        if condition.kind is fact.kind:
            return named(f"{fact.kind} holds on {node.node}: {condition.says}", node=node.node)
    return unknown(known.blind) if known.blind else fine(f"{fact.kind} holds nowhere")


def _figure(fact: FigureFact, known: Known) -> Said:
    value, about = FIGURES[fact.name](known)
    if value is None:
        return unknown(f"{fact.name} is not known")
    is_over = fact.above is not None and value > fact.above
    is_under = fact.below is not None and value < fact.below
    limit = f"above {fact.above:g}" if fact.above is not None else f"below {fact.below:g}"
    if is_over or is_under:
        return hint(f"{fact.name} is {value:.6g}, {limit}", **about)
    return fine(f"{fact.name} is {value:.6g}, not {limit}")


def _change(fact: ChangeFact, known: Known) -> Said:
    if known.journal is None:
        return unknown(known.why_unread("journal"))
    told = known.manifests
    for place in range(len(told) - 1, 0, -1):
        if told[place][0] < known.since:
            break
        for name, says in differences(told[place - 1][1], told[place][1]):
            if fnmatchcase(name, fact.setting):
                return hint(f"{known.ago(told[place][0])} {name} changed: {says}")
    return fine(f"no round began with another {fact.setting} (in {known.span})")


def _problems(check: WrittenCheck) -> Iterator[Problem]:
    for place, fact in enumerate(check.facts):
        given = [name for name in fact.__struct_fields__ if getattr(fact, name) is not None]
        if len(given) != 1:
            kinds = ", ".join(Fact.__struct_fields__)
            yield Problem(f"facts[{place}]", ", ".join(given) or None, f"give exactly one of {kinds}")
        if (figure := fact.figure) is not None:
            if figure.name not in FIGURES:
                yield Problem(f"facts[{place}].figure.name", figure.name, f"write one of {', '.join(FIGURES)}")
            if (figure.above is None) is (figure.below is None):
                yield Problem(f"facts[{place}].figure", figure.name, "give either above or below")
            if not all(math.isfinite(each) for each in (figure.above, figure.below) if each is not None):
                yield Problem(
                    f"facts[{place}].figure", figure.name, "give a limit that is a number: none is beyond it"
                )
    for command in check.next:
        if _COMMAND.fullmatch(command) is None or command.split()[0] not in READS:
            yield Problem("next", command, f"write a command that only reads: {', '.join(READS)}")
        elif not places(command) <= set(FILLED):
            yield Problem("next", command, f"what is filled in is one of {', '.join(FILLED)}")


def refuse_twins(checks: Sequence[WrittenCheck], taken: Sequence[str]) -> None:
    """Raises InvalidInput where two checks have one id, or a built-in one has it."""
    seen = set(taken)
    for each in checks:
        if each.id in seen:
            raise InvalidInput(Problem("id", each.id, "another check has it already: write one that is not taken"))
        seen.add(each.id)


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
