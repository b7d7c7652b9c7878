"""Several interventions at once: nobody waits for another tenant's, and none waits without end."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from operator_builders import NOW, document, job_object, pod, spec_of

from holdfast.api.errors import Fenced, Unavailable
from holdfast.api.intervention import InterventionOutcome, InterventionRequest, InterventionState
from holdfast.api.trainingjob import TrainingJob
from holdfast.operator.act.interventions import AT_ONCE_MAX, GIVE_UP_S, Interventions
from holdfast.operator.decide.observed import Cordoning
from holdfast.operator.decide.podbuilder import edition_of
from holdfast.operator.kube.objects import ROLL_TO, Intervention, Job, Metadata, Pod, text_of
from holdfast.operator.kube.worklist import Worklist


class Rig:
    """Interventions on the job gpt of their namespace, and a watchdog that answers when it is let."""

    def __init__(self) -> None:
        self.job: Job = job_object()
        self.job_now: Job | None = None  # where the watch of jobs is behind
        self.pods: list[Pod] = []
        self.rolled_to: list[str] = []
        self.knows, self.leads, self.away, self.now = True, True, False, NOW
        self.slow: dict[str, asyncio.Event] = {}  # names of interventions that are answered later
        self.asked: list[str] = []
        self.in_hand = self.most_in_hand = 0
        self.answers: dict[str, tuple[str, str]] = {}
        self._told = asyncio.Event()
        self._held: dict[tuple[str, str], Intervention] = {}
        self.worklist = Worklist(asyncio.get_running_loop().time)

    def ask(self, key: str, action: str = "Checkpoint") -> None:
        namespace, name = key.split("/")
        spec = {"job": "gpt", "action": action, "reason": "before an upgrade"}
        metadata = Metadata(name, namespace, f"uid-of-{key}", creation_timestamp=text_of(NOW))
        self._held[namespace, name] = Intervention(
            metadata, msgspec.Raw(json.dumps(spec).encode()), msgspec.Raw(b"{}")
        )
        self.worklist.add(key)

    async def intervene(self, request: InterventionRequest) -> InterventionOutcome | None:
        key = request.id.removeprefix("uid-of-")
        self.asked.append(key)
        if self.away:
            raise Unavailable(AWAY)
        self.in_hand += 1
        self.most_in_hand = max(self.most_in_hand, self.in_hand)
        await asyncio.sleep(0)
        if key in self.slow:
            await self.slow[key].wait()
        self.in_hand -= 1
        done = InterventionOutcome(request.id, InterventionState.DONE, "done")
        return done if self.knows else None

    async def fetch(self, _: object, where: tuple[str, str]) -> Job:
        assert where == ("research", "gpt")
        return self.job_now or self.job

    async def merge(self, _: object, where: tuple[str, str], patch: dict[str, Any], sub: str = "") -> None:
        if not self.leads:
            raise Fenced("this operator leads no more")
        if not sub:
            self.rolled_to.append(patch["metadata"]["annotations"][ROLL_TO])
            return
        self.answers["/".join(where)] = (patch["status"]["state"], patch["status"]["outcome"])
        self._told.set()

    def interventions(self) -> Interventions:
        held = SimpleNamespace(get=lambda *where: self._held.get(where), writing=_writing)
        view = SimpleNamespace(
            interventions=held,
            jobs=held,
            job=lambda _: self.job,
            jobs_in=lambda _: (),
            pods_of=lambda _: self.pods,
        )
        given: list[Any] = [view, self.worklist, self, self]
        return Interventions(*given, lambda: self.now, cordoning=Cordoning.OWN)

    async def until(self, *keys: str) -> None:
        async with asyncio.timeout(2.0):
            while not set(keys) <= set(self.answers):
                self._told.clear()
                await self._told.wait()


@contextmanager
def _writing(*_: str) -> Iterator[Any]:
    yield SimpleNamespace(landed=lambda _: None)


@asynccontextmanager
async def running(rig: Rig) -> AsyncIterator[None]:
    task = asyncio.create_task(rig.interventions().run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_one_namespaces_interventions_hold_up_no_other_and_keep_their_order() -> None:
    rig = Rig()
    first = rig.slow["a/00"] = asyncio.Event()
    for number in range(100):
        rig.ask(f"a/{number:02}")
    rig.ask("b/0")
    async with running(rig):
        await rig.until("b/0")
        assert rig.asked == ["a/00", "b/0"]
        first.set()
        await rig.until(*(f"a/{number:02}" for number in range(100)))
    assert [key for key in rig.asked if key.startswith("a/")] == [f"a/{number:02}" for number in range(100)]


async def test_namespaces_take_turns_and_so_many_at_once_and_no_more() -> None:
    rig = Rig()
    keys = [f"{namespace}/{number}" for namespace in "abcdefghijkl" for number in range(3)]
    for key in keys:
        rig.ask(key)
    async with running(rig):
        await rig.until(*keys)
    assert rig.most_in_hand == AT_ONCE_MAX
    assert {key.partition("/")[0] for key in rig.asked[:12]} == set("abcdefghijkl")


async def test_a_restart_right_after_a_change_of_the_template_goes_by_the_change_and_not_by_the_watch() -> None:
    rig = Rig()
    newer = {"spec": {"containers": [{"name": "trainer", "image": "registry.example/train:2"}]}}
    changed = document(template=newer)
    rig.job, rig.job_now = job_object(spec=document()["spec"]), job_object(spec=changed["spec"])
    rig.pods = [pod(0, made_of=document())]
    rig.ask("research/r", "Restart")
    async with running(rig):
        await rig.until("research/r")
    asked = spec_of(changed)
    assert isinstance(asked, TrainingJob)
    assert rig.rolled_to == [edition_of(asked)]
    assert "they are being replaced" in rig.answers["research/r"][1]


async def test_an_operator_that_leads_no_more_stops() -> None:
    rig = Rig()
    rig.leads = False
    rig.ask("a/00")
    async with asyncio.timeout(2.0):
        with pytest.raises(Fenced):
            await rig.interventions().run()


REFUSED: dict[str, Any] = {
    "phase": "Invalid",
    "observedGeneration": 2,
    "conditions": [{"type": "InvalidSpec", "status": "True", "message": "spec.nodes.min: 0 is not accepted"}],
}


async def answer(job: Job, age_s: float = 5.0, *, away: bool = False) -> tuple[str, str]:
    """To an intervention on a job that the watchdog does not know."""
    rig = Rig()
    rig.job, rig.knows, rig.away, rig.now = job, False, away, NOW + age_s
    rig.ask("a/00")
    async with running(rig):
        await rig.until("a/00")
    return rig.answers["a/00"]


@pytest.mark.parametrize("away", [False, True], ids=["the watchdog is there", "the watchdog is away"])
async def test_an_intervention_on_an_invalid_job_is_refused_at_once_with_the_reason(away: bool) -> None:
    mend = "; correct the spec and apply it again"
    given = job_object(generation=2, status=REFUSED)
    says = f"the job is Invalid: spec.nodes.min: 0 is not accepted{mend}"
    assert await answer(given, away=away) == ("Refused", says)
    told_by_nobody = {key: value for key, value in REFUSED.items() if key != "conditions"}
    given = job_object(generation=2, status=told_by_nobody)
    assert await answer(given, away=away) == ("Refused", f"the job is Invalid{mend}")


AWAY = "the watchdog does not answer at watchdog:7077"


async def test_an_intervention_says_that_it_waits_for_a_watchdog_that_is_away_until_it_is_done_or_given_up() -> (
    None
):
    rig = Rig()
    rig.away = True
    rig.ask("a/00")
    async with running(rig):
        await rig.until("a/00")
        assert rig.answers["a/00"] == ("Pending", f"waiting for the watchdog: {AWAY}; retrying")
        rig.away = False
        rig.answers.clear()
        rig.worklist.add("a/00")
        await rig.until("a/00")
        assert rig.answers["a/00"] == ("Done", "done")
    state, says = await answer(job_object(), GIVE_UP_S, away=True)
    assert state == "Refused"
    assert says.startswith("the watchdog gave no answer for 10 minutes")
    assert AWAY in says


@pytest.mark.parametrize("status", [{}, {"phase": "Pending"}, REFUSED], ids=["new", "pending", "mended meanwhile"])
async def test_an_intervention_on_a_job_that_is_not_taken_yet_waits_but_not_for_ever(
    status: dict[str, Any],
) -> None:
    job = job_object(generation=3, status=status)
    assert await answer(job) == ("Pending", "the watchdog has not taken the job yet")
    state, says = await answer(job, GIVE_UP_S)
    assert state == "Refused"
    assert "did not take job gpt for 10 minutes" in says
