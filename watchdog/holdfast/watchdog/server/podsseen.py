"""Where the operator sees each pod of a job."""

import asyncio

from holdfast.api.plan import PodObserved, PodState


class PodsSeen:
    """Where the operator sees the pods of one job. Kept in memory: each operator that connects tells of all."""

    def __init__(self) -> None:
        self._nodes: dict[str, str] = {}
        self._told = asyncio.Event()
        self._asked: set[str] = set()

    def is_asked(self, pod: str) -> bool:
        """Whether somebody waits to hear of the pod."""
        return pod in self._asked

    def see(self, seen: PodObserved) -> None:
        """Take in what the operator says of a pod."""
        if seen.state is PodState.GONE or not seen.node:
            self._nodes.pop(seen.member, None)
            return
        self._nodes[seen.member] = seen.node
        told, self._told = self._told, asyncio.Event()
        told.set()

    async def node_of(self, pod: str, expected: str, within_s: float) -> str | None:
        """The pod's node; None when nobody tells of it in time.

        It is waited for until it is the expected one: another pod may have had the name.
        """
        self._asked.add(pod)
        try:
            async with asyncio.timeout(within_s):
                while self._nodes.get(pod) != expected:
                    await self._told.wait()
        except TimeoutError:
            pass
        finally:
            self._asked.discard(pod)
        return self._nodes.get(pod)
