"""Counts how often nodes are written, whoever does it: a watch shows every version that a node ever had."""

import asyncio
from collections.abc import Iterable
from contextlib import aclosing
from typing import Self

from operator_rig import Cluster, eventually


class NodeWrites:
    """`async with NodeWrites(cluster, names) as writes`. A write that changes nothing is none."""

    def __init__(self, cluster: Cluster, names: Iterable[str]) -> None:
        self._cluster = cluster
        self._versions: dict[str, list[str]] = {name: [] for name in names}

    async def __aenter__(self) -> Self:
        self._watching = asyncio.create_task(self._watch())
        await self._catch_up()
        for versions in self._versions.values():
            versions[:] = versions[-1:]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._watching.cancel()
        await asyncio.gather(self._watching, return_exceptions=True)

    async def counted(self) -> dict[str, int]:
        """Up to this moment, by node."""
        await self._catch_up()
        return {name: len(versions) - 1 for name, versions in self._versions.items()}

    async def _catch_up(self) -> None:
        """A watch may be behind what is asked for."""
        newest = {name: await self._version_of(name) for name in self._versions}

        async def watched() -> bool:
            return all(version in self._versions[name] for name, version in newest.items())

        await eventually("the newest versions watched", watched, lambda: (newest, self._versions))

    async def _version_of(self, name: str) -> str:
        node = await self._cluster.api.call("GET", f"/api/v1/nodes/{name}")
        version: str = node["metadata"]["resourceVersion"]
        return version

    async def _watch(self) -> None:
        async with aclosing(self._cluster.api.follow("/api/v1/nodes")) as changes:
            async for kind, node in changes:
                if kind in ("CLEARED", "DELETED") or node["metadata"]["name"] not in self._versions:
                    continue
                versions, version = self._versions[node["metadata"]["name"]], node["metadata"]["resourceVersion"]
                if version not in versions:  # listed again after a break
                    versions.append(version)
