"""A job's plan beside what its run, and the fleet, have shown: gathered by a shell, judged by the planner."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from holdfast.api.errors import HoldfastError, InvalidInput, Problem
from holdfast.cli.doctor.facts import Finding, Level
from holdfast.cli.embedded.jobfile import read_job_file
from holdfast.cli.figures import read_figures
from holdfast.cli.seen import SeenStatus
from holdfast.planner.fleetrate import Failures, failures_of
from holdfast.planner.layout import Layout, misfits
from holdfast.planner.plan import Question
from holdfast.planner.quantity import shown
from holdfast.planner.questionfile import layout_of, question_of, read_sections
from holdfast.planner.truth import Compared, Truth, best_now, compare, with_measured

if TYPE_CHECKING:
    from holdfast.cli.site import JobSource

POINTS: Final = 60
"""Of a figure over time: the median of so many newest points."""
FAR: Final = 2.0
"""What is three times as much and more is told in times."""
_RATES: Final[Mapping[str, str]] = {
    "bandwidth-device": "memory_rate",
    "bandwidth-peer": "nvlink",
    "bandwidth-host": "host",
    "link": "tcp",
}
WHAT: Final = "plan"


def read_planned(file: Path) -> tuple[str, Question, Layout | None]:
    """The job's `namespace/name`, the question of its plan and the layout that was chosen. Raises InvalidInput."""
    job = read_job_file(file)
    sections = read_sections(file)
    question, layout = question_of(sections, file.parent), layout_of(sections)
    if layout is not None and (wrong := next(misfits(layout, *question.asked), None)) is not None:
        raise InvalidInput(
            Problem("layout", str(layout), f"write the job anew with `holdfast plan`: {wrong.says}")
        )
    return job.id, question, layout


def examine_plan(question: Question, layout: Layout, truth: Truth) -> Iterator[Finding]:
    """A finding for each assumption of which anything was measured, and what the plan becomes in all. Pure."""
    found = compare(question, layout, truth)
    yield from map(_finding, found)
    if not found:
        says = "nothing was measured yet that could be compared with it"
        fix = "self-tests measure rates (startup.preflight), training steps and MFU, the fleet failures"
        yield Finding(Level.WARN, WHAT, says, fix)
    elif any(each.is_wrong for each in found):
        now = with_measured(question, layout, truth)
        yield Finding(Level.OK, WHAT, f"with all that was measured {best_now(now, layout)}")


def _finding(each: Compared) -> Finding:
    assumed, measured = shown(each.assumed, each.unit), shown(each.measured, each.unit)
    if not each.is_wrong:
        return Finding(Level.OK, each.name, f"{measured}, assumed {assumed}")
    says = f"{measured}, assumed {assumed}: {_off(each)}" if each.assumed else f"{measured}, none assumed"
    if each.is_worse:
        return Finding(Level.WARN, each.name, says, each.becomes)
    return Finding(Level.OK, each.name, f"{says}; {each.becomes}" if each.becomes else says)


def _off(each: Compared) -> str:
    """How far a measured value is from the assumed one, in words."""
    if each.off >= FAR:
        return f"{each.off + 1.0:.3g} times that"
    return f"{abs(each.off):.0%} {'more' if each.off > 0 else 'less'}"


def truth_of(source: "JobSource", question: Question, layout: Layout) -> tuple[Truth, list[Finding]]:
    """What was measured, and findings on what could not be asked for. Raises as the source's status does."""
    status, unread = source.status(), []
    measured: dict[str, float | Failures | None] = {
        _RATES[each.check]: each.mean for each in status.rates if each.check in _RATES and each.mean > 0.0
    }
    measured["effective"] = status.ettr
    if status.world_size == layout.gpus:
        measured |= _paced(source, status)
    elif status.world_size:
        says = f"{status.world_size} ranks run, {layout.gpus} were planned: step time and MFU are not compared"
        unread.append(Finding(Level.WARN, "ranks", says))
    if (saved := status.last_checkpoint) is not None:
        measured["save_s"] = None if saved.stall_s is None else max(0.0, saved.stall_s)
        measured["written_s"] = saved.took_s or None
    measured["restart_s"] = _restarted_s(source, status)
    try:
        used = [gpu.memory_used_bytes for node in source.nodes() for gpu in node.gpus]
        measured["memory"] = max((each for each in used if each is not None), default=None)
    except HoldfastError as error:
        unread.append(Finding(Level.WARN, "memory of a GPU", f"not known: {error}"))
    try:
        measured["failures"] = failures_of(source.client().fleet(), question.cluster.per_node)
    except HoldfastError as error:
        unread.append(Finding(Level.WARN, "failures", f"not known: {error}"))
    return Truth(**measured), unread  # type: ignore[arg-type]  # each has the type of its field


def _restarted_s(source: "JobSource", status: SeenStatus) -> float | None:
    """The median of the newest restarts, less the step that shows that one is over; None where there was none."""
    try:
        incidents = source.incidents()
    except HoldfastError:
        return None
    if not isinstance(incidents, tuple):
        return None
    found = [each.time_to_recover_s for each in incidents if each.recovered_round is not None]
    took_s = [each for each in found if each is not None][-POINTS:]
    return max(0.0, median(took_s) - (status.step_time_s or 0.0)) if took_s else None


def _paced(source: "JobSource", status: SeenStatus) -> dict[str, float | Failures | None]:
    """Of many steps where a console keeps them, else of the newest."""
    try:
        figures = read_figures(source.series())
    except HoldfastError:
        return {"step_s": status.step_time_s or None}
    newest = {name: [value for _, value in figures.known(name)[-POINTS:]] for name in ("step_s", "mfu")}
    step_s = median(newest["step_s"]) if newest["step_s"] else status.step_time_s
    return {"step_s": step_s or None, "mfu": median(newest["mfu"]) if newest["mfu"] else None}
