"""Checks that go by what detectors found: an incident of the last hours, or why nobody would have seen one."""

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from holdfast.api.finding import Confidence, FindingKind
from holdfast.api.incident import Incident
from holdfast.console.runbook.answer import Said, Weight, fine, hint, named, proved, unknown
from holdfast.console.runbook.known import Known, listed

EVIDENCE_SHOWN = 200


def anything(_: Incident) -> bool:
    return True


def nothing(_: Known) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class ByIncident:
    """Suspects what an incident of `kinds` tells of, those that are `like` it.

    `blind` is why nobody would have seen one, empty while somebody would: then `sound` is so. `proves`: where a
    detector is certain, what the check names is certain; never of an incident that is neither open nor fresh.
    """

    kinds: frozenset[FindingKind]
    sound: str
    like: Callable[[Incident], bool] = anything
    blind: Callable[[Known], str] = nothing
    proves: bool = True

    def __call__(self, known: Known) -> Said:
        if known.incidents is None:
            return unknown(known.why_unread("incidents"))
        found = [each for each in known.recent() if each.kind in self.kinds and self.like(each)]
        if found:
            newest = max(found, key=lambda each: (self.weight(known, each), each.detected_at))
            return accused(known, newest, self.weight(known, newest), len(found))
        why = self.blind(known)
        return unknown(why) if why else fine(f"{self.sound} (in {known.span})")

    def weight(self, known: Known, incident: Incident) -> Weight:
        """What the incident is worth now."""
        if not known.is_fresh(incident):
            return Weight.HINTED
        is_certain = self.proves and incident.confidence is Confidence.CERTAIN
        return Weight.PROVED if is_certain else Weight.NAMED


def accused(known: Known, incident: Incident, weight: Weight, count: int = 1) -> Said:
    """A suspicion that rests on an incident, which the next command may name."""
    says = {Weight.PROVED: proved, Weight.NAMED: named, Weight.HINTED: hint}[weight]
    culprit = incident.culprit
    said = says(
        told_of(known, incident, count),
        incident=incident.id,
        node=None if incident.innocent else culprit.node,
        rank=culprit.rank,
    )
    return replace(said, healed=known.is_healed(incident))


def follows(known: Known, says: str) -> Said:
    """A state of the job that is certain, and that is no cause where an incident led to it."""
    led = [each.id for each in known.recent() if known.is_pressing(each)]
    return hint(f"{says}; it follows from {listed(led)}") if led else proved(says)


def told_of(known: Known, incident: Incident, count: int = 1) -> str:
    """The incident in a line: which, when, what, of whom, and the first thing that was seen."""
    seen = " ".join(incident.evidence[0].says.split())[:EVIDENCE_SHOWN] if incident.evidence else ""
    who = incident.blamed
    of = "" if who == "unknown" else f" of {who}"
    more = f" ({count} such incidents)" if count > 1 else ""
    cause = incident.cause if incident.cause not in seen else ""
    says = ": ".join(part for part in (f"{incident.kind}{of}", cause, seen) if part)
    return f"{incident.id}, {known.ago(incident.detected_at)}, {incident.state}: {says}{more}"


def unheard(known: Known) -> str:
    return known.unheard


def agents_away(known: Known) -> str:
    return known.blind


def sensors_away(known: Known) -> str:
    return known.dark


def no_values(known: Known) -> str:
    """Why nobody would have seen a value that is not finite."""
    if known.unheard:
        return known.unheard
    is_told = any(each.loss is not None or each.grad_norm is not None for each in known.ranks or ())
    return "" if is_told else "no rank tells its loss or gradient norm"


def same_step_again(known: Known) -> Said:
    """Whether two NaNs of a row began at one step, which random faults of machines do not."""
    if known.incidents is None:
        return unknown(known.why_unread("incidents"))
    found = [each for each in known.recent() if each.kind is FindingKind.NON_FINITE and first_step(each)]
    steps = [first_step(each) for each in found]
    again = sorted({step for step in steps if steps.count(step) > 1})
    if again:
        last = next(each for each in reversed(found) if first_step(each) == again[-1])
        says = (
            f"step {again[-1]} gave a NaN {steps.count(again[-1])} times, the last {known.ago(last.detected_at)}"
        )
        return named(f"{says}: the same data and code again gave the same", incident=last.id, step=again[-1])
    if found:
        return fine(f"no step was not finite twice (steps {listed(sorted(set(steps)))})")
    why = no_values(known)
    return unknown(why) if why else fine(f"no step was not finite (in {known.span})")


def first_step(incident: Incident) -> str:
    """The step of which a NON_FINITE tells first, as its error says; empty where it says none."""
    words = incident.error.split()
    return words[2].rstrip(":") if words[:2] == ["at", "step"] and len(words) > 2 else ""
