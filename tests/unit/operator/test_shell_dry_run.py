"""What the API server says of a template stands until it says something else."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from operator_builders import OPTIONS, document, spec_of

from holdfast.api.errors import Fenced, HoldfastError, Unavailable
from holdfast.api.trainingjob import TrainingJob
from holdfast.operator.act.dryrun import ASK_AGAIN_S, DryRun, dropped
from holdfast.operator.decide.observed import Mode, Options
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
    asking = Asking(msgspec.structs.replace(OPTIONS, mode=Mode.OBSERVE))
    asking.server.says = REFUSED
    assert await asking.about() is None
    assert asking.server.asked == 0


async def test_a_field_that_the_api_server_leaves_out_is_named_until_it_is_mended() -> None:
    asking = Asking()
    asking.server.takes = lambda pod: {**pod, "spec": {**pod["spec"], "containers": [{"name": "trainer"}]}}
    assert (await asking.about() or "").startswith("there is no field spec.containers[0].image, ")


async def test_a_server_that_knows_strict_validation_is_asked_for_it_and_names_the_field() -> None:
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


def test_a_volume_that_is_mounted_twice_lost_nothing_when_admission_mounts_a_token() -> None:
    mounts = [
        {"name": "data", "mountPath": "/in", "readOnly": True},
        {"name": "data", "mountPath": "/out", "subPath": "o"},
    ]
    token = {"name": "default-token", "mountPath": "/token", "readOnly": True}
    assert list(dropped({"volumeMounts": mounts}, {"volumeMounts": [*mounts, token]}, "s")) == []
    assert list(dropped({"volumeMounts": mounts}, {"volumeMounts": [token, *mounts]}, "s")) == []
    misspelt = [mounts[0], {**mounts[1], "readonly": True}]
    left_out = list(dropped({"volumeMounts": misspelt}, {"volumeMounts": [*mounts, token]}, "s"))
    assert left_out == ["s.volumeMounts[1].readonly"]


@pytest.mark.parametrize(
    ("given", "taken", "left_out"),
    [
        ({"a": 1}, {"a": 1, "added": 2}, []),
        ({"a": 1, "b": {"c": [{"d": 1}]}}, {"a": 1, "b": {"c": [{}]}}, ["s.b.c[0].d"]),
        ({"empty": [], "off": False, "none": None}, {}, []),
        ({"q": "1024Mi"}, {"q": "1Gi"}, []),
        ({"l": [{"name": "x", "y": 1}]}, {"l": [{"name": "sidecar"}, {"name": "x"}]}, ["s.l[0].y"]),
        ({"l": [{"key": "x", "y": 1}]}, {"l": [{"key": "added"}, {"key": "x"}]}, ["s.l[0].y"]),
        ({"l": [{"key": "x", "y": 1}]}, {"l": [{"key": "x"}, {"key": "added", "z": 1}]}, ["s.l[0].y"]),
        ({"l": [{"key": "x"}, {"key": "y", "v": 1}]}, {"l": [{"key": "y", "v": 1}]}, []),
    ],
)
def test_what_was_left_out_is_told_from_what_was_added_or_written_otherwise(
    given: Any, taken: Any, left_out: list[str]
) -> None:
    assert list(dropped(given, taken, "s")) == left_out
