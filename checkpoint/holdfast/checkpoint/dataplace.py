"""Where a loop stands in its data, as far as the data can tell."""

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Stateful(Protocol):
    """An object that can say and take its state."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> object: ...


class DataPlace:
    """The state of `data`, which may be another object in each pass over it, and whether that pass has ended: the
    random numbers of a state between two passes are those that the next pass begins with.
    """

    def __init__(self, data: Stateful) -> None:
        self.data = data
        self.has_ended = False

    @property
    def counts_globally(self) -> bool:
        """Whether the data says, by an attribute of that name, that its state is right for any rank and world."""
        return getattr(self.data, "counts_globally", False) is True

    def state_dict(self) -> dict[str, Any]:
        return {"data": self.data.state_dict(), "has_ended": self.has_ended}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.data.load_state_dict(state_dict["data"])
        self.has_ended = bool(state_dict["has_ended"])
        if self.has_ended:
            # A loader takes a state up when it is next asked, and draws random numbers meanwhile.
            self.data.state_dict()
