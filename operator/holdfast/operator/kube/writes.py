"""Every change of the cluster goes through here, and only while the operator leads."""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from holdfast.api.errors import Fenced
from holdfast.api.nesting import read
from holdfast.operator.kube.objects import Resource
from holdfast.wire.kube.client import APPLY_PATCH, JSON, MERGE_PATCH, STRATEGIC_PATCH, KubeClient, Request

FIELD_MANAGER: Final = "holdfast-operator"
WRITE_TIMEOUT_S: Final = 15.0  # admission webhooks may take ten

Manifest = Mapping[str, Any]
T = TypeVar("T")


class Writes:
    """`leads` is asked before each request. All methods raise Fenced when it says no, and as `KubeClient`."""

    def __init__(self, api: KubeClient, leads: Callable[[], bool]) -> None:
        self._api = api
        self._leads = leads

    async def create(self, resource: Resource[T], namespace: str, manifest: Manifest) -> T:
        """The object as created."""
        content = await self._send("POST", resource.path(namespace), manifest)
        return read(content, resource.shape)

    async def try_create(self, resource: Resource[T], namespace: str, manifest: Manifest) -> Manifest:
        """The object as it would be; none is made. Raises Declined with the words of admission.

        Servers before 1.25 do not know `fieldValidation` and ignore it.
        """
        content = await self._send(
            "POST", resource.path(namespace), manifest, dryRun="All", fieldValidation="Strict"
        )
        return read(content, dict[str, Any])

    async def merge(self, resource: Resource[T], where: tuple[str, str], patch: Manifest, sub: str = "") -> T:
        """The object (namespace, name) after a merge patch. A `resourceVersion` in it makes it conditional."""
        content = await self._send("PATCH", resource.path(*where, sub), patch, MERGE_PATCH)
        return read(content, resource.shape)

    async def merge_by_key(
        self, resource: Resource[T], where: tuple[str, str], patch: Manifest, sub: str = ""
    ) -> T:
        """As `merge`, of a kind of Kubernetes' own: its lists are merged by their keys, such as a condition's
        type.
        """
        content = await self._send("PATCH", resource.path(*where, sub), patch, STRATEGIC_PATCH)
        return read(content, resource.shape)

    async def apply(self, resource: Resource[T], where: tuple[str, str], manifest: Manifest) -> T:
        """The object (namespace, name) after a server-side apply. Fields another manager took are taken back."""
        content = await self._send("PATCH", resource.path(*where), manifest, APPLY_PATCH, force="true")
        return read(content, resource.shape)

    async def delete(
        self, resource: Resource[T], where: tuple[str, str], *, uid: str = "", grace_s: int | None = None
    ) -> bytes:
        """The answer: the object as it is while it goes, or a `Status` when it is gone."""
        options: dict[str, Any] = {"propagationPolicy": "Background"}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        request = Request(
            "DELETE", resource.path(*where), body=msgspec.json.encode(options), timeout_s=WRITE_TIMEOUT_S
        )
        return await self._ask(request)

    async def read(self, resource: Resource[Any], where: tuple[str, str]) -> dict[str, Any]:
        """The whole object as it is at this moment, to change a part of it."""
        content = await self._api.ask(Request("GET", resource.path(*where)))
        return read(content, dict[str, Any])

    async def fetch(self, resource: Resource[T], where: tuple[str, str]) -> T:
        """The object as it is at this moment, which the watch of its kind may tell of later."""
        return read(await self._api.ask(Request("GET", resource.path(*where))), resource.shape)

    async def _send(self, verb: str, path: str, manifest: Manifest, content: str = JSON, **more: str) -> bytes:
        query = {"fieldManager": FIELD_MANAGER, **more}
        return await self._ask(Request(verb, path, query, msgspec.json.encode(manifest), content, WRITE_TIMEOUT_S))

    async def _ask(self, request: Request) -> bytes:
        def guard() -> None:
            if not self._leads():
                raise Fenced("this operator leads no more")

        return await self._api.ask(request, guard)


def merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """What to change in `old` to get `new`; empty when they are the same. None in `new` means "not there"."""
    patch: dict[str, Any] = {key: None for key in old if new.get(key) is None and old[key] is not None}
    for key, value in new.items():
        before = old.get(key)
        if value is None or value == before:
            continue
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            if inner := merge_patch(before, value):
                patch[key] = inner
        else:
            patch[key] = value
    return patch
