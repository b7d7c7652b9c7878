"""What the runbook suspects first in jobs of which it is known what was injected.

    make bench NAME=runbook

Each situation is played in virtual time with the real journal, brain and detectors, and read through the command
line's own client (tests/unit/runbook). The checks were made with the first ones; the further ones were written
when the table of checks stood. At first sight the culprit was the first suspect in 13 of those 15. What was
learned of the two others is in the checks now, so that none is unseen any more.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from figure import Figure, Goal, measured, publish

sys.path.append(str(Path(__file__).parents[1] / "tests" / "servers"))
sys.path.append(str(Path(__file__).parents[1] / "tests" / "unit" / "runbook"))

from situations import SITUATIONS, Situation, healthy
from unseen import UNSEEN

from holdfast.console.runbook.answer import Answer, Verdict
from holdfast.console.runbook.examine import examine
from holdfast.console.runbook.symptom import Symptom

FIRST = 13 / 15
RUN_S = 0.1
RUNS = 20


def told(situation: Situation) -> tuple[Sequence[Answer], int]:
    """The answers, and in which place the culprit is among the suspects; 0: it is none."""
    found = examine(situation.symptom, situation.play().known())
    suspects = [each.id for each in found if each.verdict is Verdict.SUSPECT]
    return found, suspects.index(situation.culprit) + 1 if situation.culprit in suspects else 0


def of(name: str, situations: Sequence[Situation]) -> list[Figure]:
    """The table of these, as it is printed, and what it comes to."""
    first, wrong = 0, 0
    print(f"\n{name}:\n{'place':>6} {'of':>3}  {'symptom':17} {'injected':38} {'suspected first':22} proved")
    for situation in situations:
        found, place = told(situation)
        suspects = [each for each in found if each.verdict is Verdict.SUSPECT]
        proved = [each.id for each in suspects if each.proved]
        first += place == 1
        wrong += len(set(proved) - {situation.culprit} - situation.provable)
        shown = suspects[0].id if suspects else "nothing"
        row = f"{place or '-':>6} {len(suspects):3}  {situation.symptom:17} {situation.says:38} {shown:22}"
        print(f"{row} {', '.join(proved) or '-'}")
    count = float(len(situations))
    return [
        measured(
            f"{name}: culprit is the first suspect",
            ours=[float(first)],
            other=[count],
            unit="situations",
            target=FIRST,
            goal=Goal.AT_LEAST,
        ),
        measured(
            f"{name}: called proved and is not", ours=[float(wrong)], other=[count], unit="checks", target=0.0
        ),
    ]


def false_alarms() -> Figure:
    """Suspects in a job that is well, over all symptoms."""
    known = healthy().known()
    answers = [each for symptom in Symptom for each in examine(symptom, known)]
    suspects = float(sum(each.verdict is Verdict.SUSPECT for each in answers))
    return measured(
        "a healthy job: suspects", ours=[suspects], other=[float(len(answers))], unit="checks", target=0.0
    )


def duration() -> Figure:
    """How long all checks of all symptoms take over what was read."""
    known, took = healthy().known(), []
    for _ in range(RUNS):
        began = time.perf_counter()
        for symptom in Symptom:
            examine(symptom, known)
        took.append(time.perf_counter() - began)
    return measured("all checks", ours=took, other=[RUN_S], unit="s", target=1.0)


def main() -> None:
    """Run the bench."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    publish("runbook", [*of("made with", SITUATIONS), *of("written later", UNSEEN), false_alarms(), duration()])


if __name__ == "__main__":
    main()
