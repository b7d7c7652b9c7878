"""The runbook of a symptom, run: every check of it over what is known, the likeliest suspect first."""

from collections.abc import Sequence

from holdfast.console.runbook.answer import Answer, Verdict
from holdfast.console.runbook.known import Known
from holdfast.console.runbook.symptom import Symptom
from holdfast.console.runbook.table import checks_of

_ORDER = (Verdict.SUSPECT, Verdict.UNKNOWN, Verdict.FINE)


def examine(symptom: Symptom, known: Known) -> Sequence[Answer]:
    """The answers, suspects first. Of suspects those come first that are proved, then those that a detector names,
    then those that something hints at; of equals the likeliest.
    """
    answers = [check.answer(symptom, known) for check in checks_of(symptom)]
    return sorted(answers, key=lambda each: (_ORDER.index(each.verdict), -each.weight, -each.likely))
