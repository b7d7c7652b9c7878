"""Whoever looks on while a world lives: it is told of what happens, and changes nothing."""

from holdfast.api.plan import Plan
from holdfast.api.round import Desired, Round
from holdfast.simulator.world.nodememory import Image
from holdfast.watchdog.brain.step import Effect


class Witness:
    """One that takes no notice. Who does overrides what concerns it."""

    def decided(self, effects: tuple[Effect, ...]) -> None:
        """The watchdog has decided; none of `effects` is carried out yet."""

    def shown(self, desired: Desired) -> None:
        """This is about to be shown to every launcher."""

    def planned(self, plan: Plan) -> None:
        """The operator is about to be shown this plan."""

    def remembered(self, images: tuple[Image, ...]) -> None:
        """A round goes on from these snapshots in memory."""

    def check(self) -> None:
        """Something has happened; so after each thing that does."""

    def went_on(self, round: Round) -> None:
        """Replica groups go on into the round, and restore nothing."""

    def reached(self, why: str | None) -> None:
        """A launcher came with the number it was shown last; `why` is None unless the job stopped for it."""

    def leaves(self) -> None:
        """The watchdog is about to be killed."""
