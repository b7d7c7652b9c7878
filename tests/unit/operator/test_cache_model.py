"""Lists, watches, our writes and those of others in any order: in the end the cache is as the server.

The server is a dictionary with one growing version. A list is read at a moment between its beginning and its
answer, a watch brings every event after the list in order, and an answer to a write of ours comes any time after
it was done.
"""

import random
from collections.abc import Callable

import pytest

from holdfast.operator.kube.cache import Cache, Change, Flight
from holdfast.operator.kube.objects import Metadata, Owned

STEPS = 40
NAMES = ("a", "b")


class Server:
    """What is there, and every event so far."""

    def __init__(self) -> None:
        self.version = 0
        self.objects: dict[str, Owned] = {}
        self.events: list[tuple[int, Change, Owned]] = []

    def write(self, name: str) -> Owned:
        """Make it, or change it."""
        there = self.objects.get(name)
        self.objects[name] = self._happened(Change.MODIFIED if there else Change.ADDED, name, there)
        return self.objects[name]

    def delete(self, name: str) -> Owned:
        return self._happened(Change.DELETED, name, self.objects.pop(name))

    def _happened(self, change: Change, name: str, there: Owned | None) -> Owned:
        self.version += 1
        uid = there.metadata.uid if there else f"u{self.version}"
        after = Owned(Metadata(name=name, namespace="ns", uid=uid, resource_version=str(self.version)))
        self.events.append((self.version, change, after))
        return after


class Course:
    """One order of things, as the seed draws it. Of each object one write of ours is under way at a time."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.server = Server()
        self.cache: Cache[Owned] = Cache(lambda old, new: None)
        self.watched: int | None = None  # up to which version; None: there was no list yet
        self.begun: int | None = None
        self.listed: tuple[int, list[Owned]] | None = None
        self.answers: dict[str, Callable[[Flight[Owned]], None]] = {}
        self.flights: dict[str, tuple[Flight[Owned], Callable[[], None]]] = {}

    def run(self) -> None:
        moves = (self.others_write, self.others_delete, self.ask, self.carry_out, self.answer)
        moves += (self.begin_list, self.read_list, self.end_list, self.watch, self.watch)
        for _ in range(STEPS):
            self.random.choice(moves)()
        for name in tuple(self.flights):
            self.carry_out(name)
            self.answer(name)
        if self.watched is None:
            self.begin_list()
        self.end_list()  # of one that is under way: no further one mends what is wrong by then
        while self.watch():
            pass

    def others_write(self) -> None:
        self.server.write(self.random.choice(NAMES))

    def others_delete(self) -> None:
        if self.server.objects:
            self.server.delete(self.random.choice(sorted(self.server.objects)))

    def ask(self) -> None:
        name = self.random.choice(NAMES)
        if name not in self.flights:
            context = self.cache.writing("ns", name)
            self.flights[name] = (context.__enter__(), lambda: context.__exit__(None, None, None) and None)

    def carry_out(self, name: str | None = None) -> None:
        """The server does what we asked for: a write, one that changes nothing, or a deletion."""
        name = name or self.random.choice(NAMES)
        if name not in self.flights or name in self.answers:
            return
        there = self.server.objects.get(name)
        kind = self.random.choice(("write", "nothing", "delete")) if there else "write"
        if kind == "delete":
            uid = self.server.delete(name).metadata.uid
            self.answers[name] = lambda flight: flight.deleted(uid)
        else:
            after = self.server.write(name) if kind == "write" or there is None else there
            self.answers[name] = lambda flight: flight.landed(after)

    def answer(self, name: str | None = None) -> None:
        name = name or self.random.choice(NAMES)
        if name in self.answers:
            flight, close = self.flights.pop(name)
            self.answers.pop(name)(flight)
            close()

    def begin_list(self) -> None:
        if self.begun is None:
            self.begun, self.listed = self.cache.begin_list(), None

    def read_list(self) -> None:
        if self.begun is not None and self.listed is None:
            self.listed = (self.server.version, list(self.server.objects.values()))

    def end_list(self) -> None:
        self.read_list()
        if self.begun is not None and self.listed is not None:
            version, items = self.listed
            self.cache.replace("ns", items, self.begun, str(version))
            self.watched, self.begun, self.listed = version, None, None

    def watch(self) -> bool:
        """The next event, unless a list is under way."""
        if self.watched is None or self.begun is not None:
            return False
        for version, change, item in self.server.events:
            if version > self.watched:
                self.cache.observe(change, item)
                self.watched = version
                return True
        return False


@pytest.mark.parametrize("first", range(0, 2000, 500))
def test_the_cache_ends_as_the_server(first: int) -> None:
    for seed in range(first, first + 500):
        course = Course(seed)
        course.run()
        held = {name: item.metadata.resource_version for (_, name), item in course.cache.objects.items()}
        there = {name: item.metadata.resource_version for name, item in course.server.objects.items()}
        assert held == there, f"seed {seed}"
