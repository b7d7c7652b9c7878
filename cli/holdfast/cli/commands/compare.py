"""`holdfast compare` and `holdfast bisect`: the same run twice, and where the two are not the same.

The checkpoint library, which looks at the values of tensors, is imported when one of them is called.
"""

import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.api.errors import Damaged, InvalidInput, Problem, Unavailable
from holdfast.cli.output import ExitCode, Format, emit, format_option, pairs, remark, table

if TYPE_CHECKING:
    from holdfast.api.runmanifest import RunManifest
    from holdfast.checkpoint.runs.comparison import Parted, Setting
    from holdfast.checkpoint.runs.content import States
    from holdfast.checkpoint.runs.recorded import RecordedRun

_NAMES_SHOWN = 8
_VALUE_CHARACTERS = 60
_STEPS_MAX = 200
_USE = {  # by `runs.content.Drawn`
    "drawn from": "drawn from: seed it, for two runs to be alike",
    "not drawn from": "neither run draws from it",
    "unknown": "whether one draws from it cannot be told: each has saved one state of it",
}
Shown = Mapping[str, Any]


@click.command()
@click.argument("a")
@click.argument("b")
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0.0),
    default=1e-3,
    show_default=True,
    help="By how much losses may differ.",
)
@format_option
def compare(a: str, b: str, tolerance: float, form: Format) -> ExitCode:
    """Compare run A with run B: settings that differ, and the first steps at which they part.

    A and B are directories of checkpoints (or one step-… in them: the run up to there), or state directories of
    `holdfast run`. Exits with 1 when anything that was computed differs.
    """
    with _library():
        from holdfast.checkpoint.runs.comparison import parted, settings_apart
        from holdfast.checkpoint.runs.content import compare_states
        from holdfast.checkpoint.runs.recorded import open_run

    ours, theirs = open_run(a), open_run(b)
    manifests = _manifest(ours), _manifest(theirs)
    settings: Sequence[Setting] = ()
    if manifests[0] is not None and manifests[1] is not None:
        settings = settings_apart(manifests[0], manifests[1])
    apart, states = parted(ours.history, theirs.history, tolerance), compare_states(ours, theirs)
    value = {
        "a": _run_shown(ours, manifests[0]),
        "b": _run_shown(theirs, manifests[1]),
        "settingsKnown": None not in manifests,
        "settings": [asdict(each) for each in settings],
        "tolerance": tolerance,
        **{name: None if each is None else asdict(each) for name, each in _steps(apart).items()},
        "losses": apart.losses,
        "fingerprints": apart.fingerprints,
        "checkpoints": _states_shown(states),
        "firstStep": min((s for s in (apart.first_step, states.differs) if s is not None), default=None),
    }
    emit(form, value, table=_compared_text, names=[f"{each.section}/{each.name}" for each in settings])
    return ExitCode.OK if value["firstStep"] is None else ExitCode.FAILED


def _steps(apart: "Parted") -> dict[str, Any]:
    return {"loss": apart.loss, "lossBits": apart.loss_bits, "normBits": apart.norm_bits, "prints": apart.prints}


def _manifest(run: "RecordedRun") -> "RunManifest | None":
    """Where it cannot be read, that is said and the settings are Unknown."""
    try:
        found = run.manifest
    except Damaged as damage:
        remark(f"{run.uri}: {damage}")
        return None
    if found is None:
        remark(f"{run.uri}: no checkpoint says how the run was started; settings are not compared")
    return found


def _run_shown(run: "RecordedRun", manifest: "RunManifest | None") -> dict[str, Any]:
    code = None if manifest is None else manifest.code
    return {
        "uri": run.uri,
        "checkpoints": sorted(run.by_step),
        "command": None if manifest is None else list(manifest.command),
        "commit": None if code is None else code.commit or None,
        "diffLeftOut": None if code is None else code.left_out or None,
    }


def _states_shown(states: "States") -> dict[str, Any]:
    return {
        "common": list(states.common),
        "equal": states.equal,
        "differs": states.differs,
        "names": list(states.names),
        "generators": [
            {"generator": str(each.generator), "step": each.step, "drawn": each.drawn.value}
            for each in states.generators
        ],
    }


def _compared_text(shown: Shown) -> str:
    parts = [_settings_text(shown), pairs(_answers(shown))]
    return "\n\n".join(part for part in parts if part)


def _settings_text(shown: Shown) -> str:
    if not shown["settingsKnown"]:
        return ""
    if not shown["settings"]:
        return "no setting that is known differs"
    rows = [(each["section"], each["name"], _short(each["a"]), _short(each["b"])) for each in shown["settings"]]
    return table(("SECTION", "SETTING", "A", "B"), rows)


def _answers(shown: Shown) -> list[tuple[str, str]]:
    """One line a question."""
    losses, prints, states = shown["losses"], shown["prints"], shown["checkpoints"]
    spans = "unknown: no step's loss is known of both" if losses is None else f"none of {losses[0]} to {losses[1]}"

    def numbers(name: str) -> str:
        each = shown[name]
        return spans if each is None else f"step {each['step']} (A {each['a']:.9g}, B {each['b']:.9g})"

    if prints is not None:
        since = "" if prints["equal"] is None else f", equal after step {prints['equal']}"
        groups = f"step {prints['step']}: {_names(prints['groups'])}{since}"
    else:
        span = shown["fingerprints"]
        groups = "unknown: no step is fingerprinted in both" if span is None else f"none of {span[0]} to {span[1]}"
    if states["differs"] is not None:
        equal = "" if states["equal"] is None else f", equal after step {states['equal']}"
        content = f"step {states['differs']}: {_names(states['names'])}{equal}"
    else:
        common = states["common"]
        content = f"none of {len(common)}" if common else "unknown: no step is in both"
    notes = [("generators differ", _generators_text(states["generators"]))] if states["generators"] else []
    return [
        (f"losses differ by more than {shown['tolerance']:g}", numbers("loss")),
        ("losses differ in a bit", numbers("lossBits")),
        ("fingerprints differ", groups),
        ("checkpoints differ", content),
        *notes,
    ]


def _generators_text(generators: Sequence[Shown]) -> str:
    """By what is known of their use; only of those that are used does the state count."""
    kinds = {
        each["drawn"]: [other for other in generators if other["drawn"] == each["drawn"]] for each in generators
    }
    return "; ".join(
        f"{_names([each['generator'] for each in group])}, from step {min(each['step'] for each in group)} on"
        f" ({_USE[drawn]})"
        for drawn, group in kinds.items()
    )


@click.command()
@click.argument("a")
@click.argument("b")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--a-directory", type=click.Path(path_type=Path), help="Where A's code is, instead of what is recorded."
)
@click.option("--b-directory", type=click.Path(path_type=Path), help="Likewise B's.")
@click.option("--a-command", help="How A is started, instead of what is recorded or COMMAND says.")
@click.option("--b-command", help="Likewise B.")
@click.option("--ranks", type=click.IntRange(min=1), help="How many ranks to start (default: as recorded).")
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=_STEPS_MAX,
    show_default=True,
    help="Train so many steps again at the most.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=1.0),
    default=3600.0,
    show_default=True,
    help="Seconds for each.",
)
@click.option("--together", is_flag=True, help="Train both at the same time, where the machine holds both.")
@click.option("--scratch", type=click.Path(path_type=Path), help="Keep everything in this new folder.")
@format_option
def bisect(
    a: str,
    b: str,
    command: tuple[str, ...],
    a_directory: Path | None,
    b_directory: Path | None,
    a_command: str | None,
    b_command: str | None,
    ranks: int | None,
    steps: int,
    timeout_s: float,
    together: bool,
    scratch: Path | None,
    form: Format,
) -> ExitCode:
    """Train A and B again from their newest common checkpoint, and name the first thing that differs.

    Both are started as their manifests say, or with COMMAND, on this machine, from a copy. Exits with 1 when a
    difference was found.
    """
    with _library():
        from holdfast.checkpoint.runs.comparison import parted
        from holdfast.checkpoint.runs.content import compare_states
        from holdfast.checkpoint.runs.recorded import open_run
    from holdfast.cli.bisect.bisection import Cause, Question
    from holdfast.cli.bisect.bisection import bisect as search
    from holdfast.cli.bisect.program import program_of
    from holdfast.cli.bisect.rehearsals import rehearse

    ours, theirs = open_run(a), open_run(b)
    commands = [shlex.split(each) if each else command for each in (a_command, b_command)]
    manifests = [_required(run, said) for run, said in zip((ours, theirs), commands, strict=True)]
    states, apart = compare_states(ours, theirs), parted(ours.history, theirs.history)
    began, last = window(
        states.equals, (apart.first_step, states.differs), (max(ours.by_step), max(theirs.by_step)), steps
    )
    with _folder(scratch) as folder:
        copied = folder / "checkpoints"
        copied.mkdir()
        if began:
            ours.copy(began, copied)
        first, second = (
            program_of(name, manifest, scratch=folder, directory=where, command=said, ranks=ranks)
            for name, manifest, where, said in zip(
                "AB", manifests, (a_directory, b_directory), commands, strict=True
            )
        )
        for each in (first, second):
            remark(f"{each.name} is started in {each.directory}: {shlex.join(each.command)}")
            if each.others:
                remark(f"{each.name} is started with other code than it ran: {_names(each.others)}")
        parts = [step for step in (apart.first_step, states.differs) if step is not None]
        question = Question(first, second, str(copied), began, last, folder, min(parts, default=None))
        found = search(
            question, (ours.history, theirs.history), lambda runs: rehearse(runs, timeout_s, together=together)
        )
    value = asdict(found) | {"step": found.step}
    emit(form, value, table=_bisected_text, names=[] if found.step is None else [str(found.step)])
    return ExitCode.OK if found.cause is Cause.NONE else ExitCode.FAILED


def window(
    equals: Sequence[int], parts: Sequence[int | None], newest: Sequence[int], steps_max: int
) -> tuple[int, int]:
    """From which step on both are to be trained again (0: afresh), and up to which: `steps_max` at the most.
    `equals` are the steps whose checkpoints are equal, `parts` those at which something is known to differ,
    `newest` each run's last one.
    """
    first = min((step for step in parts if step is not None), default=None)
    last = min(newest) if first is None else first
    began = max((step for step in equals if step < last), default=0)
    return began, min(last, began + steps_max)


def _required(run: "RecordedRun", command: Sequence[str]) -> "RunManifest":
    from holdfast.api.runmanifest import FORMAT, RunManifest

    found = _manifest(run)
    if found is None and not command:
        fix = "no checkpoint says how it was started: name the command after --, and its directory"
        raise InvalidInput(Problem(field="run", value=run.uri, fix=fix))
    return found or RunManifest(format=FORMAT)


@contextmanager
def _folder(scratch: Path | None) -> Iterator[Path]:
    """A folder for everything that is written; it is deleted again, unless the user named it."""
    if scratch is None:
        with tempfile.TemporaryDirectory(prefix="holdfast-bisect-") as folder:
            yield Path(folder)
        return
    if scratch.exists():
        raise InvalidInput(Problem(field="--scratch", value=str(scratch), fix="it exists: name a new folder"))
    scratch.mkdir(parents=True)
    yield scratch.absolute()


def _bisected_text(shown: Shown) -> str:
    """The answer first, then how it was found."""
    found, lines = shown["difference"], list[tuple[str, str]]()
    lines.append(("cause", shown["cause"]))
    lines.append(("first step that differs", "none" if shown["step"] is None else str(shown["step"])))
    if found is not None:
        module = found["module"]
        lines.append(("in", f"{found['stage']}, rank {found['rank']}: {found['says']}"))
        lines.append(("module", "unknown" if module is None else module or "(the model itself)"))
        lines.append(("operation", found["operation"] or "unknown"))
        if found["names"]:
            more = found["count"] - len(found["names"])
            lines.append(("parameters", _names(found["names"], more)))
    for each in shown["departures"]:
        lines.append((f"{each['name']}'s own record", f"differs from step {each['step']} on: {each['what']}"))
    lines.append(("trained again", f"steps {shown['began'] + 1} to {shown['last']}"))
    lines.append(("that is", shown["says"]))
    return pairs(lines)


def _names(names: Sequence[str], further: int = 0) -> str:
    further += max(0, len(names) - _NAMES_SHOWN)
    more = f" and {further} more" if further > 0 else ""
    return ", ".join(names[:_NAMES_SHOWN]) + more


def _short(value: str | None) -> str:
    if value is None:
        return "-"
    return value if len(value) <= _VALUE_CHARACTERS else f"{value[: _VALUE_CHARACTERS - 3]}..."


@contextmanager
def _library() -> Iterator[None]:
    """Raises Unavailable when what is imported within is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        says = f"the checkpoint library is not whole here ({error}); install it with pip install 'holdfast[torch]'"
        raise Unavailable(says) from error
