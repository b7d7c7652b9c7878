"""docs/job-phases.md says what the brain's tables say. Run this file to write it anew."""

from collections.abc import Iterator
from pathlib import Path

from holdfast.api.status import JobPhase
from holdfast.watchdog.brain.phases import LEADS_TO, Turn
from holdfast.watchdog.brain.table import ALIVE, ENDED, MOVES, TRANSITIONS

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "job-phases.md"
HEAD = """# The phases of a job

What leads a job into each phase. *Failed* is left by a restart alone, *Succeeded* by nothing but another job of
the same name. *Stalled*, which a status may show in place of *Running*, is no phase that anything is decided by.
While it is shown no member counts as ready, the condition `Ready` is not True, and the ETTR is Unknown.

| phase | once |
|---|---|
"""
EVENTS = """
## Events

Every event is something in every phase. Whatever its handler notes, what follows from the state is settled next:
whether the job is done, is held, grows, needs a checkpoint, or a round can be shown.

| event | while the job goes on | Suspended | Succeeded | Failed |
|---|---|---|---|---|
"""


def written() -> str:
    """The whole document."""
    rows = [f"| {phase.value} | {_once(phase)} |" for phase in dict.fromkeys(LEADS_TO.values())]
    events = [f"| `{kind.__name__}` | {' | '.join(_cells(kind))} |" for kind in MOVES]
    return HEAD + "\n".join(rows) + "\n" + EVENTS + "\n".join(events) + "\n"


def _once(phase: JobPhase) -> str:
    return "; ".join(turn.value for turn in Turn if LEADS_TO[turn] is phase)


def _cells(kind: type) -> Iterator[str]:
    """The first sentence of each handler's contract."""
    for phase in (ALIVE[0], JobPhase.SUSPENDED, *ENDED):
        handler = TRANSITIONS[phase, kind]
        says = " ".join((handler.__doc__ or "").split()).partition(". ")[0].removesuffix(".")
        yield "the same" if handler is MOVES[kind] and phase is not ALIVE[0] else says


def test_the_document_is_in_step() -> None:
    assert DOCUMENT.read_text() == written(), "run this file"


def test_no_event_depends_on_which_phase_of_a_job_that_goes_on_it_meets() -> None:
    assert all(TRANSITIONS[phase, kind] is move for phase in ALIVE for kind, move in MOVES.items())


if __name__ == "__main__":
    DOCUMENT.write_text(written())
