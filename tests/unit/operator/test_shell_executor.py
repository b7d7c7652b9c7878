"""What of a look is carried out though something else of it fails."""

from collections.abc import Callable

import pytest
from operator_builders import NOW, job_object

from holdfast.operator.act.executor import Executor
from holdfast.operator.decide.action import Cordon, DeleteJob, SetNodeHealth
from holdfast.operator.kube.clusterview import ClusterView
from holdfast.operator.kube.objects import text_of
from holdfast.operator.kube.writes import Writes
from holdfast.wire.kube.client import Request
from holdfast.wire.kube.reply import refusal

TELLS = SetNodeHealth("n1", "False", "Faulty", "XID 79", text_of(NOW))


class NodesRefused:
    """An API server that answers whatever is asked of nodes with this, and takes the rest."""

    def __init__(self, code: int) -> None:
        self._code = code
        self.deleted: list[str] = []

    async def ask(self, request: Request, guard: Callable[[], None] | None = None) -> bytes:
        if "/nodes/" in request.path:
            raise refusal(self._code, b'{"reason": "Because"}')
        if request.verb == "DELETE":
            self.deleted.append(request.path)
        return b'{"kind": "Status"}'


async def deleted_after(first: SetNodeHealth | Cordon, code: int) -> bool:
    """Whether a job whose time is over is deleted, though what comes before that is answered so."""
    server, view = NodesRefused(code), ClusterView(*(lambda name: None,) * 3)
    writes = Writes(server, lambda: True)  # type: ignore[arg-type]
    executor = Executor(
        view,
        writes,
        None,  # type: ignore[arg-type]
        owned={},
        done=lambda kind: None,
        wall=lambda: text_of(NOW),
    )
    faults = await executor.apply(job_object(), (first, DeleteJob()))
    assert [action for action, _ in faults] == [first]
    return bool(server.deleted)


@pytest.mark.parametrize("code", [403, 422], ids=["without the right", "against a policy"])
async def test_a_job_goes_though_others_cannot_be_told_of_its_node(code: int) -> None:
    assert await deleted_after(TELLS, code)


@pytest.mark.parametrize("code", [409, 500], ids=["a race", "an outage"])
async def test_a_job_waits_until_others_were_told_where_that_is_a_matter_of_time(code: int) -> None:
    assert not await deleted_after(TELLS, code)


async def test_a_job_waits_until_its_node_is_out_of_service() -> None:
    assert not await deleted_after(Cordon("n1", "XID 79", "incident-1"), 403)
