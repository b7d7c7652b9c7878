"""What the API server says of a template stands until it says something else."""

from collections.abc import Callable

import msgspec
import pytest
from operator_builders import TERMS, document, spec_of

from holdfast.api.errors import Fenced, HoldfastError, Unavailable
from holdfast.api.trainingjob import TrainingJob
from holdfast.operator.apiserver import Request
from holdfast.operator.dryrun import ASK_AGAIN_S, DryRun
from holdfast.operator.observed import Mode, Terms
from holdfast.operator.refusal import refusal
from holdfast.operator.writes import Writes

REFUSED = refusal(403, b'{"reason": "Forbidden", "message": "no such service account"}')
AWAY = Unavailable("the API server does not answer")


class Opinion:
    """An API server that has one of every pod: None takes it."""

    def __init__(self) -> None:
        self.says: HoldfastError | None = None
        self.asked = 0

    async def ask(self, request: Request, guard: Callable[[], None]) -> bytes:
        guard()
        self.asked += 1
        if self.says is not None:
            raise self.says
        return b"{}"


class Asking:
    """A dry run, its server and its clock."""

    def __init__(self, terms: Terms = TERMS) -> None:
        self.server, self.now, self.leads = Opinion(), 0.0, True
        writes = Writes(self.server, lambda: self.leads)  # type: ignore[arg-type]
        self._dry_run = DryRun(writes, terms, lambda: self.now)

    async def about(self, generation: int = 1) -> str | None:
        job = spec_of(document(generation=generation))
        assert isinstance(job, TrainingJob)
        return await self._dry_run.refused(job)


async def test_a_template_that_was_taken_is_asked_about_once_per_generation() -> None:
    asking = Asking()
    assert await asking.about() is None
    asking.now, asking.server.says = 1e6, REFUSED
    assert await asking.about() is None
    assert asking.server.asked == 1
    assert await asking.about(generation=2) == "no such service account"


async def test_a_refusal_is_asked_about_again_and_stands_as_long_as_nobody_answers() -> None:
    asking = Asking()
    asking.server.says = REFUSED
    assert await asking.about() == "no such service account"
    asking.server.says = AWAY
    asking.now = ASK_AGAIN_S
    assert await asking.about() == "no such service account"
    assert asking.server.asked == 2
    assert await asking.about(generation=2) is None
    asking.server.says = None
    assert await asking.about() is None


async def test_an_operator_that_leads_no_more_hears_so() -> None:
    asking = Asking()
    asking.leads = False
    with pytest.raises(Fenced):
        await asking.about()


async def test_an_operator_that_observes_does_not_ask_for_what_it_has_no_right_to() -> None:
    asking = Asking(msgspec.structs.replace(TERMS, mode=Mode.OBSERVE))
    asking.server.says = REFUSED
    assert await asking.about() is None
    assert asking.server.asked == 0
