"""Feeding a journal to the brain again, from the store of a run or from a watchdog that runs elsewhere."""

from collections.abc import Callable
from typing import Final

import msgspec

from holdfast.api.errors import Unavailable
from holdfast.cli.localsite import LocalSource
from holdfast.cli.watchdogclient import WatchdogClient
from holdfast.watchdog import brain
from holdfast.watchdog.brain.step import turn
from holdfast.watchdog.journal.replay import Replay, Replayed, Verdict, replay, walk

Show = Callable[[Replayed], None]
EVENT_WIDTH_MAX: Final = 160
LOOKS_MAX: Final = 5  # the job goes on meanwhile: how often to catch up with it before giving up


def replay_stored(source: LocalSource, show: Show) -> Replay:
    """Compared with the stored state. Raises Unavailable when there is no journal."""
    with source.store() as store:
        for step in walk(store, source.job, brain=brain):
            show(step)
        return replay(store, source.job, brain=brain)


def replay_shown(client: WatchdogClient, show: Show) -> Replay:
    """Compared with the round and plan the watchdog shows, once nothing was journaled between reading both.

    Raises Unavailable when the journal grows faster than it can be read, or when its first lines are gone.
    """
    state, offset = brain.initial(client.job), 0
    for _ in range(LOOKS_MAX):
        for line in client.journal(offset):
            if line.offset != offset + 1:
                raise Unavailable(
                    f"the journal of {client.job} begins at line {line.offset}; what the lines before it led to"
                    " is only in the watchdog's store, so that it cannot be replayed from here"
                )
            step = turn(brain, state, line.event, line.at)
            state, offset = step.state, line.offset
            show(Replayed(line, step.effects, step.reason, state))
        kept = {"desired": client.desired(), "plan": client.plan()}
        if next(client.journal(offset), None) is None:
            differences = tuple(
                f"{name}: the journal gives {getattr(state, name)!r}, shown is {value!r}"
                for name, value in kept.items()
                if getattr(state, name) != value
            )
            verdict = Verdict.DIFFERENT if differences else Verdict.EQUAL
            return Replay(client.job, offset, state, verdict, offset, differences)
    raise Unavailable(f"the journal of {client.job} grows faster than it can be read; try again")


def replay_line(step: Replayed) -> str:
    """One event: its place, what it was, what was decided and why."""
    event = msgspec.json.encode(step.line.event).decode()
    shown = event if len(event) <= EVENT_WIDTH_MAX else f"{event[: EVENT_WIDTH_MAX - 1]}…"
    effects = ", ".join(type(effect).__name__ for effect in step.effects) or "nothing"
    return f"{step.line.offset:6d}  {step.line.at:.3f}  {shown}\n        -> {effects}: {step.reason.says}"


def shown_verdict_text(outcome: Replay) -> str:
    """Whether the journal leads to the round and plan that a watchdog shows."""
    read = f"{outcome.lines} events of {outcome.job} were replayed"
    if outcome.verdict is Verdict.EQUAL:
        return f"{read}; they lead to the round and the plan that are shown"
    listed = "\n".join(f"  {difference}" for difference in outcome.differences)
    return f"{read}; what is shown differs from what they lead to:\n{listed}"


def stored_verdict_text(outcome: Replay) -> str:
    """Whether the journal leads to the state that was kept."""
    read = f"{outcome.lines - outcome.begun_at} events of {outcome.job} were replayed"
    if outcome.begun_at:
        read += f" from the state kept at event {outcome.begun_at} (older events were compacted)"
    if outcome.verdict is Verdict.NOTHING_KEPT:
        return f"{read}; no state was kept to compare with"
    if outcome.verdict is Verdict.EQUAL:
        return f"{read}; at event {outcome.compared_at} the state is the one that was kept, byte for byte"
    listed = "\n".join(f"  {difference}" for difference in outcome.differences)
    return f"{read}; at event {outcome.compared_at} the state differs from the one that was kept:\n{listed}"
