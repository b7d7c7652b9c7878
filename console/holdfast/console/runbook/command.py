"""The command to run next, as it is typed where somebody is: with program, job and place."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

_JOB_IS_AN_ARGUMENT: Final = frozenset(
    {
        "status",
        "ranks",
        "nodes",
        "logs",
        "incidents",
        "journal",
        "replay",
        "pause",
        "resume",
        "restart",
        "cost",
        "rounds",
    }
)
_OF_NO_JOB: Final = frozenset({"doctor"})


@dataclass(frozen=True, slots=True)
class Typed:
    """How this person names the job. `job` None: there is only one; `place` are further options, such as -n."""

    program: str = "holdfast"
    job: str | None = None
    place: Sequence[str] = ()

    def line(self, words: str) -> str:
        """`words` as a whole command line."""
        first, *_ = words.split()
        named: list[str] = []
        if self.job is not None and first not in _OF_NO_JOB:
            takes_argument = first in _JOB_IS_AN_ARGUMENT or words == "checkpoint take"
            named = [self.job] if takes_argument else ["--job", self.job]
        rest = shlex.join((*named, *self.place))
        return f"{self.program} {words} {rest}".rstrip()


def in_cluster(namespace: str, name: str) -> Typed:
    """As it is typed from anywhere that reaches the cluster."""
    return Typed("kubectl holdfast", name, ("-n", namespace))
