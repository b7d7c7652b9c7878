"""Where nodes come from: who asks for one gets a name, and what is known of its place."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Supplied:
    """A node that the cluster gives: its name and the name of the pod on it; `rack` empty: nobody knows.

    `misfit`: its GPUs share no NVLink domain as large as the job asks for.
    """

    node: str
    member: str
    rack: str = ""
    misfit: bool = False


class Cluster:
    """One that has as many new nodes as anybody wants, of which the first `misfits` do not suit the job."""

    def __init__(self, misfits: int = 0) -> None:
        self._misfits = misfits
        self._made = 0

    def supply(self) -> Supplied | None:
        """One more node; None while there is none."""
        self._made += 1
        misfit, self._misfits = self._misfits > 0, max(0, self._misfits - 1)
        name = f"node-{self._made}"
        return Supplied(name, name, misfit=misfit)

    def take_back(self, node: str, why: str) -> None:
        """The node is no more of the job."""
