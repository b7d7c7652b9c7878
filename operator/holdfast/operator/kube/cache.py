"""The newest version of each object, our own writes included before the watch has brought them.

Versions of an object are compared for being the same. That is enough: a watch brings every version in order, so
until it brings the one our write made, everything it brings of that object is older than our write. A list that
was under way while we wrote may have the write or not, and the watch that follows brings it only in the second
case: there the list's version tells, which is greater than that of everything in it. So it does where an answer
comes later than a list or an event that is newer than what it tells.
Source: https://github.com/kubernetes/enhancements/tree/master/keps/sig-api-machinery/5504-comparable-resource-version
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from types import MappingProxyType
from typing import Generic, Protocol, TypeVar

from holdfast.operator.kube.objects import Metadata

Key = tuple[str, str]
"""Namespace and name."""


class HasMetadata(Protocol):
    @property
    def metadata(self) -> Metadata: ...


T = TypeVar("T", bound=HasMetadata)


class Change(Enum):
    """What a watch says of an object."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


class Flight(Generic[T]):
    """A write on its way. Call `landed` or `deleted` with what the API server answered, neither when it failed."""

    def __init__(self, cache: "Cache[T]", key: Key) -> None:
        self._cache = cache
        self._key = key
        self._brought: set[str] = set()  # versions that a watch or a list brought meanwhile: it may be faster
        self._newest = -1  # the greatest of them

    def landed(self, written: T) -> None:
        """The object as it is after the write."""
        version = written.metadata.resource_version
        if version not in self._brought and not 0 <= _number(version) <= self._newest:
            self._cache.write(self._key, written)

    def deleted(self, uid: str) -> None:
        """The object of that uid is gone at once."""
        self._cache.erase(self._key, uid)

    def brought(self, version: str) -> None:
        """What is known of the object is as new as this."""
        self._brought.add(version)
        self._newest = max(self._newest, _number(version))


class Cache(Generic[T]):
    """Objects by namespace and name. `changed` is called with the old and the new one (None: there is none)."""

    def __init__(self, changed: Callable[[T | None, T | None], None]) -> None:
        self._changed = changed
        self._objects: dict[Key, T] = {}
        self._awaited: dict[Key, tuple[str, int]] = {}  # the version our write made, and its number
        self._erased: dict[Key, tuple[str, int]] = {}  # the uid we deleted, and its number
        self._flights: dict[Key, list[Flight[T]]] = {}
        self._writes = 0

    @property
    def objects(self) -> Mapping[Key, T]:
        """All of them, a live view."""
        return MappingProxyType(self._objects)

    def get(self, namespace: str, name: str) -> T | None:
        """The newest version, None when there is no such object."""
        return self._objects.get((namespace, name))

    @contextmanager
    def writing(self, namespace: str, name: str) -> Iterator[Flight[T]]:
        """Around a write to one object."""
        key = (namespace, name)
        flight = Flight(self, key)
        self._flights.setdefault(key, []).append(flight)
        try:
            yield flight
        finally:
            self._flights[key].remove(flight)
            if not self._flights[key]:
                del self._flights[key]

    def begin_list(self) -> int:
        """Call before asking for a list; `replace` wants the answer."""
        return self._writes

    def replace(self, namespace: str, items: Iterable[T], begun: int, version: str) -> None:
        """A full list of `namespace` (empty: of all) as of `version`. Our writes that are newer stay."""
        listed = {_key(item): item for item in items}
        for key in [key for key in self._objects if namespace in ("", key[0]) and key not in listed]:
            if not self._is_awaited_after(key, begun, version):
                self._awaited.pop(key, None)
                self._put(key, None)
        for key, item in listed.items():
            self._note(key, item)
            if self._is_awaited_after(key, begun, version):
                continue
            self._awaited.pop(key, None)
            uid, number = self._erased.get(key, ("", 0))
            self._put(key, None if uid == item.metadata.uid and number > begun else item)
        for key, flights in self._flights.items():
            if namespace in ("", key[0]):  # an object that is not in the list is gone
                for flight in flights:
                    flight.brought(version)
        self._erased = {key: each for key, each in self._erased.items() if each[1] > begun}

    def observe(self, change: Change, item: T) -> None:
        """One event of the watch."""
        key, uid, held = _key(item), item.metadata.uid, self._objects.get(_key(item))
        self._note(key, item)
        erased = key in self._erased and self._erased[key][0] == uid
        if change is Change.DELETED:
            if erased:
                del self._erased[key]
            if held is not None and held.metadata.uid == uid:
                self._awaited.pop(key, None)
                self._put(key, None)
            return
        if erased:
            return
        awaited = self._awaited.get(key)
        if awaited is not None:
            if awaited[0] != item.metadata.resource_version:
                return
            del self._awaited[key]
        self._put(key, item)

    def _note(self, key: Key, item: T) -> None:
        for flight in self._flights.get(key, ()):
            flight.brought(item.metadata.resource_version)

    def _is_awaited_after(self, key: Key, begun: int, version: str) -> bool:
        """Whether a write of ours is newer than the list that was begun then and has that version."""
        written, number = self._awaited.get(key, ("", 0))
        return number > begun and not 0 <= _number(written) <= _number(version)

    def write(self, key: Key, written: T) -> None:
        """What a flight brought home."""
        held = self._objects.get(key)
        if held is not None and held.metadata.resource_version == written.metadata.resource_version:
            return  # the write changed nothing, so the watch will bring nothing
        self._writes += 1
        self._awaited[key] = (written.metadata.resource_version, self._writes)
        self._put(key, written)

    def erase(self, key: Key, uid: str) -> None:
        """What a flight deleted."""
        held = self._objects.get(key)
        if held is None or held.metadata.uid != uid:
            return
        self._writes += 1
        self._erased[key] = (uid, self._writes)
        self._awaited.pop(key, None)
        self._put(key, None)

    def _put(self, key: Key, item: T | None) -> None:
        old = self._objects.get(key)
        if item is None:
            self._objects.pop(key, None)
        else:
            self._objects[key] = item
        if _version(old) != _version(item):  # our own write, brought by the watch as well, is no news
            self._changed(old, item)


def _number(version: str) -> int:
    """-1 where a version is none."""
    return int(version) if version.isdecimal() else -1


def _version(item: HasMetadata | None) -> tuple[str, str] | None:
    return None if item is None else (item.metadata.uid, item.metadata.resource_version)


def _key(item: HasMetadata) -> Key:
    return item.metadata.namespace, item.metadata.name
