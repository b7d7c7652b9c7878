"""Checks of what was changed: the start, the learning rate, the world, the place in history."""

import itertools
from collections.abc import Iterator
from typing import Final

from holdfast.api.event import InterventionRequested
from holdfast.api.runmanifest import RunManifest, Section
from holdfast.console.runbook.answer import Said, fine, hint, unknown
from holdfast.console.runbook.check import Check
from holdfast.console.runbook.known import Known, listed
from holdfast.console.runbook.symptom import Symptom

COMPARED: Final = tuple(each for each in Section if each is not Section.TOPOLOGY)
"""Another topology is a change of the world, which has a check of its own."""
RATES: Final = ("lr", "learning_rate", "learningrate", "warmup", "schedule", "scheduler", "decay")
NO_MANIFEST: Final = "no round has told how it was started: the script uses no Checkpointer and no run.configure"
BEFORE = "status"


def differences(before: RunManifest, after: RunManifest) -> Iterator[tuple[str, str]]:
    """Names of what is not the same, each with the two values in words."""
    if before.command != after.command:
        yield "command", f"{' '.join(before.command)} -> {' '.join(after.command)}"
    if before.code.commit != after.code.commit:
        yield "commit", f"{before.code.commit[:12] or '?'} -> {after.code.commit[:12] or '?'}"
    if before.code.diff != after.code.diff or before.code.files != after.code.files:
        yield "source files", "their content"
    for section in COMPARED:
        ours, theirs = before.of(section), after.of(section)
        for name in sorted(ours.keys() | theirs.keys()):
            if ours.get(name) != theirs.get(name):
                yield f"{section}/{name}", f"{ours.get(name, 'absent')} -> {theirs.get(name, 'absent')}"


def changed_run(known: Known) -> Said:
    """How the newest round that told of it was started, beside the one before."""
    if known.journal is None:
        return unknown(known.why_unread("journal"))
    told = known.manifests
    if not told:
        return unknown(NO_MANIFEST)
    at, newest = told[-1]
    if at < known.since:
        return fine(f"started the same way since {known.ago(at)}")
    if len(told) < 2:
        if known.is_whole:
            return fine("started the same way in all rounds")
        return unknown(f"what it was before the start {known.ago(at)} is no more in the journal")
    changed = [f"{name} {says}" for name, says in differences(told[-2][1], newest)]
    if not changed:
        return fine("only the topology is not that of the start before")
    return hint(f"since {known.ago(at)}: {listed(changed)}")


def learning_rate(known: Known) -> Said:
    """Cuts that rounds began with, requests of people, and settings that say so by their name."""
    if known.journal is None:
        return unknown(known.why_unread("journal"))
    for at, asked in reversed(known.told(InterventionRequested)):
        scale = asked.request.learning_rate_scale
        if at >= known.since and scale != 1.0:
            return hint(
                f"{known.ago(at)} somebody asked for {scale:g} times the learning rate: {asked.request.reason}"
            )
    cuts = known.round.restore.cuts() if known.round is not None else ()
    begun = known.restored[-1] if known.restored else None
    if cuts and begun is not None and begun.at >= known.since:
        says = f"round {begun.round}, {known.ago(begun.at)}, began with {cuts[-1].scale:g} times the learning rate"
        return hint(f"{says} from step {cuts[-1].after} on")
    told = known.manifests
    if len(told) > 1 and told[-1][0] >= known.since:
        for name, says in differences(told[-2][1], told[-1][1]):
            if any(part in RATES for part in name.lower().replace("/", ".").replace("-", "_").split(".")):
                return hint(f"{name} was changed {known.ago(told[-1][0])}: {says}")
    if not told or not told[-1][1].of(Section.CONFIGURATION):
        return unknown(
            "the script does not tell its settings (run.configure): only cuts by Holdfast are seen, none"
        )
    return fine("no cut, no request and no setting changed it; what the script's own schedule does is not seen")


def world(known: Known) -> Said:
    """How many ranks entered the newest round, and the one before."""
    if known.journal is None:
        return unknown(known.why_unread("journal"))
    worlds = known.worlds
    if not worlds:
        return unknown("no round was entered, or the journal begins behind it")
    at, number, size = worlds[-1]
    for (_, _, before), (when, begun, after) in reversed(list(itertools.pairwise(worlds))):
        if when >= known.since and before != after:
            batch = "a script that has a batch for each rank now trains with another global batch"
            return hint(
                f"round {begun}, {known.ago(when)}, has {after} ranks, the one before had {before}: {batch}"
            )
    if at >= known.since and len(worlds) == 1 and not known.is_whole:
        return unknown(f"what was before round {number} is no more in the journal")
    return fine(f"{size} ranks, as before")


def replay(known: Known) -> Said:
    """A restore that went back behind steps that were complete."""
    if known.journal is None:
        return unknown(known.why_unread("journal"))
    if not known.restored:
        return unknown("no round has told what it restored")
    last = known.restored[-1]
    if last.at < known.since:
        return fine(f"the last restore was {known.ago(last.at)}")
    step = known.status.step if known.status is not None else None
    if last.high is None:
        return fine("nothing was trained before the round began")
    if step is None:
        return unknown(f"where the job is since the restore {known.ago(last.at)} is not known")
    lost = last.high - (last.step or 0)
    if lost <= 0 or step >= last.high:
        return fine(
            f"the restore {known.ago(last.at)} went back {max(0, lost)} steps, and all of them are made again"
        )
    says = f"{known.ago(last.at)} it went back from step {last.high} to {last.step or 0}; it is at {step}"
    return hint(f"{says}: what is seen is of the past until step {last.high}", step=last.high)


CHECKS: Final = (
    Check(
        "changed-run",
        "Code, configuration, environment or packages changed between rounds",
        {
            Symptom.LOSS_SPIKED: 25,
            Symptom.NAN: 18,
            Symptom.SLOW: 12,
            Symptom.OUT_OF_MEMORY: 20,
            Symptom.WILL_NOT_START: 15,
        },
        changed_run,
        ("journal",),
        "12.9 % of interruptions are of software: https://arxiv.org/abs/2407.21783, table 5",
    ),
    Check(
        "learning-rate",
        "The learning rate was changed by a rewind, a request or a setting",
        {Symptom.LOSS_SPIKED: 28, Symptom.NAN: 15},
        learning_rate,
        ("journal",),
        "rates and batches were changed on the way: https://arxiv.org/abs/2205.01068, section 2.4",
    ),
    Check(
        "world-changed",
        "The number of ranks changed, and perhaps the global batch",
        {Symptom.LOSS_SPIKED: 18, Symptom.NAN: 5, Symptom.SLOW: 18, Symptom.OUT_OF_MEMORY: 10},
        world,
        ("status",),
    ),
    Check(
        "went-back",
        "It went back: what is seen was trained before",
        {Symptom.LOSS_SPIKED: 14, Symptom.SLOW: 5, Symptom.COST: 12},
        replay,
        ("incidents",),
    ),
)
