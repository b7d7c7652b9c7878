"""A check as data: what it asks, for which symptoms, how likely it is there, and what to run next."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from string import Formatter

from holdfast.console.runbook.answer import Answer, Said, Verdict, Weight
from holdfast.console.runbook.known import Known
from holdfast.console.runbook.symptom import OF_NOW, Symptom

OUR_JUDGEMENT = "our judgement; nobody has published a share"


@dataclass(frozen=True, slots=True)
class Check:
    """`title` is what would be wrong. `likely` is, by symptom, of a hundred such calls about how many it is: from
    `source` where that has a figure, so that it orders checks and measures nothing.

    `next` are commands without program and job. Of what is suspect the first is told whose places `look` filled
    in; of all else the last, which only reads.
    """

    id: str
    title: str
    likely: Mapping[Symptom, int]
    look: Callable[[Known], Said]
    next: Sequence[str]
    source: str = OUR_JUDGEMENT

    def answer(self, symptom: Symptom, known: Known) -> Answer:
        """What it says of the job. A check that fails says that nothing is known, with the error."""
        try:
            said = self.look(known)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            said = Said(Verdict.UNKNOWN, f"the check itself failed ({type(error).__name__}: {error})")
        # A person is called about what is now: what was healed before may have to do with it, and no more.
        weight = Weight.HINTED if said.healed and symptom in OF_NOW else said.weight
        return Answer(
            id=self.id,
            title=self.title,
            verdict=said.verdict,
            proved=weight is Weight.PROVED,
            evidence=said.evidence,
            next=self.command(said.about) if said.verdict is Verdict.SUSPECT else self.next[-1],
            likely=self.likely[symptom],
            weight=weight,
        )

    def command(self, about: Mapping[str, str]) -> str:
        """The words to type next about a suspect."""
        return next(each.format(**about) for each in self.next if places(each) <= about.keys())


def places(command: str) -> frozenset[str]:
    """The names that are to be filled in."""
    return frozenset(name for _, name, _, _ in Formatter().parse(command) if name)
