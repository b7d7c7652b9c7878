"""A replayed journal as text."""

import msgspec

from holdfast.watchdog.journal.replay import Replay, Replayed, Verdict

EVENT_WIDTH_MAX = 160


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


def verdict_text(outcome: Replay) -> str:
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
