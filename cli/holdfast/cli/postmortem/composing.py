"""The document about one incident, or about all of a stretch of time."""

from collections.abc import Iterator, Sequence
from typing import Final

from holdfast.api.finding import Confidence
from holdfast.api.incident import CAUSE_WITHIN_S, Incident, IncidentState
from holdfast.api.ledger import NOTHING, Amount, Row
from holdfast.cli.output import UNKNOWN, instant, number, seconds
from holdfast.cli.postmortem.case import Case
from holdfast.cli.postmortem.document import Block, Bullets, Document, Heading, Paragraph, Table, Verbatim, cut
from holdfast.cli.postmortem.pace import TARGETS_S, Remark, remarks
from holdfast.cli.postmortem.pictures import pictures
from holdfast.cli.postmortem.timeline import timeline_of
from holdfast.cli.rounds.comparison import Compared
from holdfast.cli.rounds.effect import Turn
from holdfast.cli.view import RUNG_WORDS, confidence_text, culprit_text, healed_no_round, known_text, rung_text
from holdfast.console.runbook.known import many
from holdfast.console.runbook.symptom import symptom_of

LINES_MOST: Final = 80
"""Of a timeline. The first ones tell how it began, the last ones how it ended."""
CHANGES_MOST: Final = 12


def postmortem(case: Case, incident: Incident) -> Document:
    """The document about one incident."""
    title = f"Postmortem of {incident.id}: {incident.kind} of {culprit_text(incident)} in {case.job}"
    return Document(title, (Heading(1, title), *_about(case, incident, 2), *_unread(case)))


def report(case: Case, incidents: Sequence[Incident], since: float) -> Document:
    """The document about all `incidents`, those detected since then, oldest first; also where there is none."""
    title = f"Incidents of {case.job} since {instant(since)}"
    blocks: list[Block] = [Heading(1, title)]
    if not incidents:
        return Document(title, (*blocks, Paragraph("There was none."), *_unread(case)))
    rows = [
        (
            each.id,
            instant(each.began_at),
            each.kind.value,
            culprit_text(each),
            seconds(each.time_to_detect_s),
            seconds(each.time_to_cause_s),
            seconds(each.time_to_recover_s),
            _price(case, _sum(case, each)),
            each.state.value,
        )
        for each in incidents
    ]
    headers = (
        "incident",
        "began",
        "kind",
        "culprit",
        "detected in",
        "cause known in",
        "new step in",
        "cost",
        "state",
    )
    blocks += [Paragraph(_overview(case, incidents)), Table(headers, tuple(rows))]
    for each in incidents:
        blocks.append(Heading(2, f"{each.id}: {each.kind} of {culprit_text(each)}"))
        blocks += _about(case, each, 3)
    return Document(title, (*blocks, *_unread(case)))


def _overview(case: Case, incidents: Sequence[Incident]) -> str:
    late = [each.id for each in incidents if (each.time_to_cause_s or 0.0) > CAUSE_WITHIN_S]
    unknown = [each.id for each in incidents if not each.has_known_cause]
    total = NOTHING
    for each in incidents:
        total = total + _sum(case, each)
    told = f"{many(len(incidents), 'incident')}; {_price(case, total)}."
    told += f" The cause of {', '.join(unknown)} is not known." if unknown else " Every cause is known."
    return told + (f" It was known later than {seconds(CAUSE_WITHIN_S)} of {', '.join(late)}." if late else "")


def _about(case: Case, incident: Incident, level: int) -> Iterator[Block]:
    """Everything about one incident, under headings of that level."""
    yield Bullets(tuple(_summary(case, incident)))
    yield Heading(level, "Timeline")
    yield from _timeline(case, incident)
    yield Heading(level, "Cause")
    yield from _cause(incident)
    yield Heading(level, "Detection")
    yield from _detection(incident)
    yield Heading(level, "What was done")
    yield from _actions(incident)
    yield Heading(level, "Cost")
    yield from _cost(case, incident)
    yield Heading(level, "What could have been faster")
    yield from _pace(case, incident)
    yield Heading(level, "What had changed before")
    yield from _changed(case, incident)
    yield Heading(level, "Figures")
    yield from pictures(case, incident)
    yield Heading(level, "To look further")
    symptom = symptom_of(incident)
    commands = (f"holdfast why {incident.id}", f"holdfast runbook {symptom}", "holdfast rounds")
    yield Verbatim("\n".join((*commands, f"holdfast postmortem {incident.id} --distill check.yaml")))


def _summary(case: Case, incident: Incident) -> Iterator[str]:
    yield f"Job {case.job}, round {number(incident.round)}; {incident.id} is {incident.state.value.lower()}."
    yield f"Began {instant(incident.began_at)} (estimated), detected {seconds(incident.time_to_detect_s)} after."
    yield f"Cause known {known_text(incident)}."
    if incident.recovered_at is not None:
        yield (
            f"New step {instant(incident.recovered_at)}, {seconds(incident.time_to_recover_s)} after it began,"
            f" by round {number(incident.recovered_round)}; {number(incident.lost_steps)} steps were lost."
        )
    else:
        yield "No round had to be healed." if healed_no_round(incident) else "No new step was seen since."
    yield f"It cost {_price(case, _sum(case, incident))}. Highest rung: {rung_text(incident)}."


def _timeline(case: Case, incident: Incident) -> Iterator[Block]:
    lines = timeline_of(incident, case.journal, case.ended(incident))
    left_out = max(0, len(lines) - LINES_MOST)
    if left_out:
        lines = (*lines[: LINES_MOST // 2], *lines[-LINES_MOST // 2 :])
    rows = tuple(
        (instant(each.at), f"{each.at - incident.began_at:+.3f} s", each.sort.value, cut(each.says, 400))
        for each in lines
    )
    yield Table(("at", "since it began", "", "what"), rows)
    if left_out:
        yield Paragraph(f"{left_out} lines in the middle are left out; `holdfast journal` has them.")


def _cause(incident: Incident) -> Iterator[Block]:
    yield Paragraph(f"{incident.kind}: {cut(incident.cause)}. {_sure(incident)}.")
    if incident.note:
        yield Paragraph(cut(incident.note))
    if incident.evidence:
        yield Bullets(tuple(f"{each.source}: {cut(each.says, 400)}" for each in incident.evidence[:8]))
    if incident.error:
        yield Verbatim(cut(incident.error))


def _sure(incident: Incident) -> str:
    """How sure it is. What nobody can name is said to be that, never a guess."""
    told = confidence_text(incident)
    return told if incident.confidence is not Confidence.UNKNOWN else f"The culprit is not known: {told}"


def _detection(incident: Incident) -> Iterator[Block]:
    first = min(incident.evidence, key=lambda each: each.at, default=None)
    by = f"First told of by {first.source}: {cut(first.says, 400)}." if first else "No evidence was kept of it."
    yield Paragraph(f"{by} From the fault to the finding: {seconds(incident.time_to_detect_s)}.")


def _actions(incident: Incident) -> Iterator[Block]:
    if not incident.actions:
        yield Paragraph("Nothing: it was told, and training went on or ended.")
        return
    rows = tuple(
        (instant(each.at), RUNG_WORDS[each.rung], cut(each.does, 400), cut(each.reason, 400))
        for each in incident.actions
    )
    yield Table(("at", "rung", "what", "because"), rows)


def _cost(case: Case, incident: Incident) -> Iterator[Block]:
    if case.ledger is None:
        yield Paragraph("Unknown: the ledger could not be read.")
        return
    amounts: dict[Row, Amount] = {}
    for each in case.ledger.entries:
        if each.incident == incident.id:
            amounts[each.row] = amounts.get(each.row, NOTHING) + Amount(each.gpu_us, 0, each.money)
    if not amounts:
        yield Paragraph("No GPU time is charged to it. (Of a long ledger the older half forgets its incidents.)")
    else:
        currency = case.ledger.currency
        rows = [
            (row.value, f"{amount.gpu_hours:,.4f}", f"{amount.price:,.2f} {currency}" if currency else "no price")
            for row, amount in sorted(amounts.items(), key=lambda each: list(Row).index(each[0]))
        ]
        yield Table(("row", "GPU-hours", "money"), tuple(rows))
    if incident.slowed is not None:
        yield Paragraph(f"Waiting for slow ranks cost {incident.slowed.rank_hours:.3g} rank-hours.")


def _sum(case: Case, incident: Incident) -> Amount:
    total = NOTHING
    for each in case.ledger.entries if case.ledger is not None else ():
        if each.incident == incident.id:
            total = total + Amount(each.gpu_us, 0, each.money)
    return total


def _price(case: Case, amount: Amount) -> str:
    if case.ledger is None:
        return f"{UNKNOWN} GPU-hours"
    money = f" ({amount.price:,.2f} {case.ledger.currency})" if case.ledger.currency else ""
    return f"{amount.gpu_hours:,.4f} GPU-hours{money}"


def _pace(case: Case, incident: Incident) -> Iterator[Block]:
    phases = case.phases[incident.id]
    found = remarks(incident, phases, case.others(incident), case.policy)
    late = {each.stage: each for each in found}
    unended = "goes on" if incident.state is IncidentState.OPEN else f"{UNKNOWN}: its end was not seen"
    rows = []
    for each in phases:
        remark = late.get(each.stage)
        took = seconds(each.took_s) if each.ended is not None else unended
        rows.append(
            (each.stage.value, took, f"at most {seconds(TARGETS_S[each.stage])}", "long" if remark else "")
        )
    yield Table(("phase", "took", "our target", ""), tuple(rows))
    if not found:
        yield Paragraph(
            "No phase took longer than its target, or clearly longer than in the job's other incidents."
        )
        return
    yield Bullets(tuple(_remark(each) for each in found))


def _remark(remark: Remark) -> str:
    usual = "" if remark.usual_s is None else f", {seconds(remark.usual_s)} as a rule in this job"
    target = "" if remark.target_s is None else f", to be {seconds(remark.target_s)} at most"
    setting = f" {remark.setting}:" if remark.setting else ""
    return f"{remark.stage.value} took {seconds(remark.took_s)}{usual}{target}.{setting} {remark.says}."


def _changed(case: Case, incident: Incident) -> Iterator[Block]:
    earlier = [each for each in case.rounds if each.round.began <= incident.began_at]
    before = [each for each in earlier if each.changes]
    if not case.rounds:
        yield Paragraph("Unknown: the journal tells of no round.")
    elif not earlier or (not before and any(each.round.manifest is None for each in earlier)):
        why = "did not tell how they were started, or the journal begins behind them"
        yield Paragraph(f"Nothing that is known: rounds before it {why}.")
    elif not before:
        yield Paragraph("Nothing that is known: every round before it was started alike, in the same world.")
    else:
        yield from changed_in(before[-1])


def changed_in(told: Compared) -> Iterator[Block]:
    """What changed with one round, and what its figures did."""
    yield Paragraph(f"With round {told.round.number}, {instant(told.round.began)}:")
    shown = told.changes[:CHANGES_MOST]
    rows = tuple(
        (each.about.value, cut(each.name, 120), cut(each.before, 120), cut(each.after, 120)) for each in shown
    )
    yield Table(("about", "what", "before", "after"), rows)
    if len(told.changes) > len(shown):
        yield Paragraph(f"{len(told.changes) - len(shown)} further changes; `holdfast rounds -o json` has them.")
    moved = [each for each in told.effects if each.turn in (Turn.BETTER, Turn.WORSE)]
    steady = [each.figure for each in told.effects if each.turn is Turn.SAME]
    for each in moved:
        yield Paragraph(
            f"{each.figure}: {each.turn.value}, {number(each.before)} before and {number(each.after)} after."
        )
    if steady:
        yield Paragraph(f"Within what is usual: {', '.join(steady)}.")


def _unread(case: Case) -> Iterator[Block]:
    if case.unread:
        yield Heading(2, "What could not be read")
        yield Bullets(case.unread)
