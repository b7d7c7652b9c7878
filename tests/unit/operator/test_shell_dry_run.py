"""What the API server says of a template stands until it says something else."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from operator_builders import OPTIONS, document, spec_of

from holdfast.api.errors import Fenced, HoldfastError, Unavailable
from holdfast.api.trainingjob import TrainingJob
from holdfast.operator.act.dryrun import ASK_AGAIN_S, DryRun
from holdfast.operator.decide.alterations import Alterations
from holdfast.operator.decide.observed import Mode, Options, Trial
from holdfast.operator.kube.writes import Writes
from holdfast.wire.kube.client import Request
from holdfast.wire.kube.reply import refusal

REFUSED = refusal(403, b'{"reason": "Forbidden", "message": "no such service account"}')
AWAY = Unavailable("the API server does not answer")


class Opinion:
    """An API server that has one of every pod: None takes it."""

    def __init__(self) -> None:
        self.says: HoldfastError | None = None
        self.takes: Callable[[Any], Any] = lambda pod: pod
        self.asked = 0
        self.query: Mapping[str, str] = {}

    async def ask(self, request: Request, guard: Callable[[], None]) -> bytes:
        guard()
        self.asked += 1
        self.query = request.query
        if self.says is not None:
            raise self.says
        assert request.body is not None
        return msgspec.json.encode(self.takes(msgspec.json.decode(request.body)))


class Asking:
    """A dry run, its server and its clock."""

    def __init__(self, options: Options = OPTIONS) -> None:
        self.server, self.now, self.leads = Opinion(), 0.0, True
        writes = Writes(self.server, lambda: self.leads)  # type: ignore[arg-type]
        self._dry_run = DryRun(writes, options, lambda: self.now)

    async def about(self, generation: int = 1) -> str | None:
        return (await self.trial(generation)).refused

    async def trial(self, generation: int = 1) -> Trial:
        job = spec_of(document(generation=generation))
        assert isinstance(job, TrainingJob)
        return await self._dry_run.trial(job)


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
    asking = Asking(msgspec.structs.replace(OPTIONS, mode=Mode.OBSERVE))
    asking.server.says = REFUSED
    assert await asking.about() is None
    assert asking.server.asked == 0


async def test_a_field_that_the_api_server_leaves_out_is_named_and_refuses_nothing() -> None:
    asking = Asking()
    asking.server.takes = lambda pod: {**pod, "spec": {**pod["spec"], "subdomain": ""}}
    trial = await asking.trial()
    assert trial == Trial(altered=Alterations(rewritten=("spec.subdomain ('' in place of 'gpt')",)))
    asking.server.takes = lambda pod: {**pod, "spec": {**pod["spec"], "volumes": []}}
    assert await asking.trial() is trial, "once for each generation"
    altered = (await asking.trial(generation=2)).altered
    assert altered is not None
    assert altered.dropped[0] == "spec.volumes[0]"


async def test_a_pod_that_is_taken_as_it_is_has_no_alterations() -> None:
    assert await Asking().trial() == Trial(altered=Alterations())


async def test_the_server_is_asked_to_be_strict_and_names_the_field() -> None:
    asking = Asking()
    says = (
        'Pod in version \\"v1\\" cannot be handled as a Pod: strict decoding error: '
        'unknown field \\"spec.tolerations[0].efect\\", unknown field \\"spec.containers[0].resourcess\\"'
    )
    asking.server.says = refusal(400, f'{{"reason": "BadRequest", "message": "{says}"}}'.encode())
    told = await asking.about()
    assert asking.server.query["fieldValidation"] == "Strict"
    named = "spec.tolerations[0].efect, spec.containers[0].resourcess"
    assert told == f"there is no field {named}; mend the spelling or remove it"
