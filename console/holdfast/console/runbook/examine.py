"""The runbook of a symptom, run: every check of it over what is known, the likeliest suspect first."""

from collections.abc import Sequence

from holdfast.console.runbook.answer import Answer, Verdict
from holdfast.console.runbook.check import Check
from holdfast.console.runbook.known import Known
from holdfast.console.runbook.symptom import Symptom
from holdfast.console.runbook.table import checks_of

_ORDER = (Verdict.SUSPECT, Verdict.UNKNOWN, Verdict.FINE)


def examine(symptom: Symptom, known: Known, further: Sequence[Check] = ()) -> Sequence[Answer]:
    """The answers of the built-in checks and of `further` ones, suspects first. Of suspects those come first that
    are proved, then those that a detector names, then those that something hints at; of equals the likeliest.
    """
    asked = (*checks_of(symptom), *(check for check in further if symptom in check.likely))
    answers = [check.answer(symptom, known) for check in asked]
    return sorted(answers, key=lambda each: (_ORDER.index(each.verdict), -each.weight, -each.likely))
