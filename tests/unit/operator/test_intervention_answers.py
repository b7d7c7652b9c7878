import json
from typing import Any

import msgspec
import pytest

from holdfast.api.intervention import (
    InterventionAction,
    InterventionOutcome,
    InterventionRequest,
    InterventionState,
)
from holdfast.operator.decide.intervention import answer, attend, is_answered, refusal_of, waiting
from holdfast.operator.kube.objects import Intervention, Metadata, text_of

NOW = 1_800_000_000.0
EVICT = {"job": "gpt", "action": "Evict", "node": "n3", "reason": "smells"}


def asked(spec: Any, status: dict[str, Any] | None = None) -> Intervention:
    text = spec if isinstance(spec, bytes) else json.dumps(spec).encode()
    return Intervention(
        Metadata("evict-x7k2p", "research", "uid-of-evict"),
        msgspec.Raw(text),
        msgspec.Raw(json.dumps(status or {}).encode()),
    )


def test_a_request_travels_under_the_objects_uid() -> None:
    request = attend(asked(EVICT))
    assert request == InterventionRequest(
        id="uid-of-evict", job="research/gpt", action=InterventionAction.EVICT, reason="smells", node="n3"
    )


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (
            {**EVICT, "job": "other/gpt"},
            "spec.job: 'other/gpt' is not accepted; name a job of the namespace research",
        ),
        ({**EVICT, "node": None}, "spec.node: (missing) is not accepted; add it; Evict needs it"),
        ({**EVICT, "nodes": 3}, "spec.nodes: 3 is not accepted; remove it; Evict does not read it"),
        ({**EVICT, "action": "Reboot"}, "spec.action: 'Reboot' is not accepted; write one of: 'Evict'"),
        ({}, "spec.job: (missing) is not accepted; add it"),
        (["job"], "spec: ['job'] is not accepted; write a mapping"),
        (b"{", "spec: 'what is there' is not accepted; write a mapping"),
    ],
)
def test_a_request_that_cannot_be_sent_is_refused_with_field_value_and_fix(spec: Any, says: str) -> None:
    given = asked(spec)
    problems = attend(given)
    assert isinstance(problems, tuple)
    refusal = refusal_of(given, problems)
    assert refusal.state is InterventionState.REFUSED
    assert says in refusal.outcome


def outcome(state: InterventionState, text: str) -> InterventionOutcome:
    return InterventionOutcome("uid-of-evict", state, text)


def test_an_answer_is_written_when_it_changes_and_is_final_once() -> None:
    pending = answer(asked(EVICT), outcome(InterventionState.PENDING, "waiting"), NOW)
    assert pending == {"state": "Pending", "outcome": "waiting", "startedAt": text_of(NOW)}
    held = asked(EVICT, dict(pending))
    assert not is_answered(held)
    assert answer(held, outcome(InterventionState.PENDING, "waiting"), NOW + 5) is None
    done = answer(held, outcome(InterventionState.DONE, "node n3 left"), NOW + 9)
    assert done == {
        "state": "Done",
        "outcome": "node n3 left",
        "startedAt": text_of(NOW),
        "finishedAt": text_of(NOW + 9),
    }
    final = asked(EVICT, dict(done))
    assert is_answered(final)
    assert answer(final, outcome(InterventionState.REFUSED, "too late"), NOW + 99) is None


def test_what_is_waited_for_is_written_once_for_each_error_and_not_for_each_address() -> None:
    says = "the watchdog does not answer at watchdog:7077: [Connect call failed ('10.0.0.{}', 7077)]"
    first = waiting(asked(EVICT), says.format(3))
    assert first.state is InterventionState.PENDING
    assert first.outcome == f"waiting for the watchdog: {says.format(3)}; retrying"
    written = answer(asked(EVICT), first, NOW)
    assert written is not None
    held = asked(EVICT, dict(written))
    assert answer(held, waiting(held, says.format(18)), NOW + 2) is None
    other = answer(held, waiting(held, "the watchdog refused the token of token: 401"), NOW + 4)
    assert other is not None
    assert (other["outcome"], other["startedAt"]) == (
        "waiting for the watchdog: the watchdog refused the token of token: 401; retrying",
        text_of(NOW),
    )
    assert len(waiting(held, "x" * 9_000).outcome) < 600


def test_a_status_that_cannot_be_read_counts_as_none() -> None:
    broken = asked(EVICT, {"state": 3})
    assert not is_answered(broken)
    assert answer(broken, outcome(InterventionState.DONE, "done"), NOW) is not None
