"""A launcher's connection to the watchdog: it keeps order like TCP does, and breaks at any moment.

What was under way when it breaks is lost; a launcher that reconnects repeats what it cannot know to have arrived.
A message may be late, never reordered within its connection.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from holdfast.api.event import Event
from holdfast.simulator.world.watchdog import Watchdog
from holdfast.watchdog.detectors.detector import Heard, Sample

REPEATED_MESSAGES: Final = 4
KEPT_MESSAGES: Final = 16


class Line:
    """The connections of one launcher, one after another. `lives`: whether its process is there.

    `greet` is called with each new connection, to say who is there. `beats`: it says every second that it is.
    """

    def __init__(
        self, name: str, watchdog: Watchdog, *, lives: Callable[[], bool], greet: Callable[[], None], beats: bool
    ) -> None:
        self.watchdog, self.agenda = watchdog, watchdog.agenda
        self.connection = 0  # grows with every connection; 0 while there is none
        self.silent = False  # nothing passes, nothing closes
        self.has_left = False  # the watchdog heard it say so, and its connection means nothing any more
        self._name, self._lives, self._greet = name, lives, greet
        self._beats, self._spell = beats, 0  # grows whenever it begins or ceases to beat
        self._connections = 0
        self._connected_at = 0.0
        self._epoch = 0  # the watchdog's, when it connected
        self._arrives = 0.0  # when the last message does
        self._recent: list[Callable[[], None]] = []

    @property
    def in_touch(self) -> bool:
        """Whether it has had time to hear what the watchdog shows now."""
        return bool(self.connection) and not self.silent and self.agenda.now - self._connected_at > 0.1

    def connect(self) -> None:
        """As soon as the watchdog can be reached."""
        if not self._lives() or self.connection:
            return
        if not self.watchdog.up or self.silent:
            self.agenda.after(self.agenda.tempo.reconnect_s(), self.connect)
            return
        self._connections += 1
        self.connection, self._epoch = self._connections, self.watchdog.epoch
        self._arrives = self._connected_at = self.agenda.now
        self._greet()
        self.repeat()
        if self._beats:
            self.agenda.after(1.0, partial(self._beat_on, self._spell, self.connection))

    def disconnect(self, *, told: bool = False) -> None:
        """The connection is gone, with all that was under way. `told`: the watchdog sees it close."""
        had, self.connection = self.connection, 0
        if had and told and not self.has_left:
            self.watchdog.closed(self._name)
        if self._lives():
            self.agenda.after(self.agenda.tempo.reconnect_s(), self.connect)

    def dismissed(self) -> None:
        """The watchdog closed the connection: this one counts as lost."""
        if self.connection:
            self.disconnect()

    def silence(self, seconds: float, then: Callable[[], None]) -> None:
        """Nothing passes for a while, either way."""
        self.silent = True

        def over() -> None:
            self.silent = False
            then()

        self.agenda.after(seconds, over)

    # to the watchdog

    def send(self, arrive: Callable[[], None]) -> None:
        """Deliver a little later, in order, unless the connection breaks first."""
        connection = self.connection
        if not connection or self.silent:
            return
        self._arrives = max(self._arrives, self.agenda.now) + self.agenda.tempo.message_s()

        def deliver() -> None:
            if self.watchdog.up and self._epoch == self.watchdog.epoch and self.connection == connection:
                self.watchdog.observe(Heard(self._name))
                arrive()

        self.agenda.after(self._arrives - self.agenda.now, deliver)

    def tell(self, event: Event) -> None:
        """What has happened; said again after the next reconnect."""
        self._keep_sending(partial(self.watchdog.record, event))

    def show(self, sample: Sample) -> None:
        """What the detectors are to see; shown again after the next reconnect."""
        self._keep_sending(partial(self.watchdog.observe, sample))

    def _keep_sending(self, arrive: Callable[[], None]) -> None:
        self._recent = [*self._recent, arrive][-KEPT_MESSAGES:]
        self.send(arrive)

    def repeat(self) -> None:
        """What may not have arrived."""
        for message in self._recent[-REPEATED_MESSAGES:]:
            self.send(message)

    def forget(self) -> None:
        """Another process knows nothing of what was said."""
        self._recent = []

    def beat(self) -> None:
        """From now on it says every second that it is there."""
        self._beats, self._spell = True, self._spell + 1
        if self.connection:
            at_s = self.agenda.draw.uniform(0.0, 1.0)
            self.agenda.after(at_s, partial(self._beat_on, self._spell, self.connection))

    def rest(self) -> None:
        """It does not any more."""
        self._beats, self._spell = False, self._spell + 1

    def _beat_on(self, spell: int, connection: int) -> None:
        if self._lives() and connection and (spell, connection) == (self._spell, self.connection):
            self.send(lambda: None)
            self.agenda.after(1.0, partial(self._beat_on, spell, connection))

    # from the watchdog

    def receive(self, arrive: Callable[[], None]) -> None:
        """What the watchdog sends now arrives a little later, if the launcher still hears this connection."""
        connection = self.connection

        def hear() -> None:
            if bool(connection) and self._lives() and not self.silent and self.connection == connection:
                arrive()

        self.agenda.after(self.agenda.tempo.message_s(), hear)
