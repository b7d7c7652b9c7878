"""The audit of a script, as a process of its own: it imports the script, asks it for a subject and probes that.

    python -m holdfast.trainer.probes [--entry NAME] [--probes NAME,...] SCRIPT [ARGUMENT...]

The answers go to stdout as one JSON object, whatever the script prints goes to stderr. Exits with 0 when there are
answers, whatever they say, and with 2 when the script offers nothing to probe.
"""

import argparse
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from holdfast.api.audit import Audit, Probe, ProbeAnswer
from holdfast.api.errors import InvalidInput, Problem
from holdfast.trainer.probes.agreement import agreement
from holdfast.trainer.probes.causality import causality
from holdfast.trainer.probes.determinism import another_world_size, same_step_twice
from holdfast.trainer.probes.reduction import reduction_of
from holdfast.trainer.probes.subject import Subject, kept_as_found

MODULE: Final = "holdfast_audited"
"""What `__name__` is in the script: what it starts under `if __name__ == "__main__"` is not started."""
MISSES: Final = {
    Probe.REDUCTION: "Subject(world_size=..., loss=...)",
    Probe.DETERMINISM: "Subject(loss=...)",
    Probe.AGREEMENT: "Subject(reference=...)",
    Probe.SCALING: "Subject(watches=[ScalingWatch()])",
    Probe.ROUTING: "Subject(watches=[RoutingWatch()])",
}


def main() -> None:
    """The program. Exits as the module's docstring says."""
    answers_to = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a script prints would be taken for answers
    parser = argparse.ArgumentParser(prog="holdfast audit")
    parser.add_argument("--entry", default="audit")
    parser.add_argument("--probes", default="")
    parser.add_argument("script", type=Path)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    try:
        asked = [Probe(each) for each in given.probes.split(",") if each]
        found = audit(subject_of(given.script, given.entry, given.arguments), asked)
    except InvalidInput as error:
        print(f"holdfast: {error}", file=sys.stderr)  # noqa: T201  # it is what this program says
        sys.exit(2)
    with answers_to:
        answers_to.write(msgspec.json.encode(found))


def subject_of(script: Path, entry: str, arguments: Sequence[str]) -> Subject:
    """What the function `entry` of the script returns, with `arguments` as the command line of the script.

    Raises InvalidInput, with the line of the script, when there is no such file or function, when either raises or
    exits, and when what comes back is no Subject.
    """
    if not script.is_file():
        raise InvalidInput(Problem("SCRIPT", str(script), "there is no such file"))
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent.absolute()))
    spec = importlib.util.spec_from_file_location(MODULE, script)
    if spec is None or spec.loader is None:
        raise InvalidInput(Problem("SCRIPT", str(script), "name a Python file, ending in .py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    _guarded(script, "importing it", lambda: spec.loader.exec_module(module))  # type: ignore[union-attr]
    function = getattr(module, entry, None)
    if not callable(function):
        fix = f"define `def {entry}() -> Subject` in {script.name}, or name another function with --entry"
        raise InvalidInput(Problem("--entry", entry, fix))
    subject = _guarded(script, f"{entry}()", function)
    if not isinstance(subject, Subject):
        fix = "return a holdfast.trainer.probes.Subject"
        raise InvalidInput(Problem(f"{entry}()", type(subject).__name__, fix))
    return subject


def _guarded(script: Path, doing: str, function: Callable[[], object]) -> object:
    try:
        return function()
    except InvalidInput:
        raise
    except SystemExit as error:
        fix = f"{doing} must not exit (it did, with {error.code!r}); give the script's own arguments after --"
        raise InvalidInput(Problem("SCRIPT", str(script), fix)) from error
    except Exception as error:
        raise InvalidInput(Problem("SCRIPT", str(script), f"{doing} raised {_told(error, script)}")) from error


def _told(error: Exception, script: Path | None = None) -> str:
    """The error, and the last line of the script, or else of any file, that led to it."""
    frames = traceback.extract_tb(error.__traceback__)
    of_script = [
        each for each in frames if script is not None and Path(each.filename).resolve() == script.resolve()
    ]
    last = (of_script or frames)[-1]
    return f"{type(error).__name__}: {error} ({Path(last.filename).name}, line {last.lineno})"


def audit(subject: Subject, asked: Sequence[Probe] = ()) -> Audit:
    """Run the probes that are asked for, or else all that the subject offers something for.

    A probe in which the model raises answers UNKNOWN with the error; the others are run all the same.
    """
    offered = [each for each in Probe if _is_offered(each, subject)]
    answers: list[ProbeAnswer] = []
    for probe in asked or offered:
        try:
            answers += PROBES[probe](subject)
        except Exception as error:
            change = "let the model run on the batch that the script gives"
            says = str(error) if isinstance(error, InvalidInput) else f"the model raised {_told(error)}"
            answers.append(ProbeAnswer.unknown(probe, says, change))
    not_run = (
        {} if asked else {each: f"the script gives no {MISSES[each]}" for each in Probe if each not in offered}
    )
    return Audit(answers=tuple(answers), not_run=not_run)


def _is_offered(probe: Probe, subject: Subject) -> bool:
    match probe:
        case Probe.REDUCTION:
            return subject.loss is not None and subject.world_size is not None
        case Probe.DETERMINISM:
            return subject.loss is not None
        case Probe.AGREEMENT:
            return subject.reference is not None
        case Probe.SCALING | Probe.ROUTING:
            return bool(subject.watches)
        case _:
            return True


def _determinism(subject: Subject) -> tuple[ProbeAnswer, ...]:
    return (same_step_twice(subject), another_world_size(subject))


def _watched(probe: Probe) -> Callable[[Subject], tuple[ProbeAnswer, ...]]:
    """What the subject's watches answer after one step, of those that are of this probe."""

    def ask(subject: Subject) -> tuple[ProbeAnswer, ...]:
        with kept_as_found(subject.model):
            subject.model.train()
            subject.outputs() if subject.loss is None else subject.step()
        told = [each for watch in subject.watches for each in watch.answers() if each.probe is probe]
        if told:
            return tuple(told)
        return (ProbeAnswer.unknown(probe, "no watch tells of it", f"say {MISSES[probe]}"),)

    return ask


PROBES: Mapping[Probe, Callable[[Subject], tuple[ProbeAnswer, ...]]] = {
    Probe.CAUSALITY: lambda subject: (causality(subject),),
    Probe.REDUCTION: reduction_of,
    Probe.DETERMINISM: _determinism,
    Probe.AGREEMENT: lambda subject: (agreement(subject),),
    Probe.SCALING: _watched(Probe.SCALING),
    Probe.ROUTING: _watched(Probe.ROUTING),
}
