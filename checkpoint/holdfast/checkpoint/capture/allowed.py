"""What of a checkpoint and of a script may differ, as the script says it. All else that differs is refused."""

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

_OF_PARAMETERS = ("model.", "optimizer.state.")


@dataclass(frozen=True, slots=True)
class Allowed:
    """Patterns (`*`, `?`, `[]`) of whole names, or of names of parameters: `head.*` is the weights of a head, in
    the model, and all that the optimizer keeps of them.

    What is `missing` from the checkpoint stays as the script made it; what is `left_over` in it is not restored. A
    parameter of another shape may be both.
    """

    missing: tuple[str, ...] = ()
    left_over: tuple[str, ...] = ()

    def may_miss(self, name: str) -> bool:
        return _matches(name, self.missing)

    def may_leave(self, name: str) -> bool:
        return _matches(name, self.left_over)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    names = [name, *(name.removeprefix(root) for root in _OF_PARAMETERS if name.startswith(root))]
    # What is kept of a parameter has its name and more.
    whole = [form for pattern in patterns for form in (pattern, f"{pattern}.*")]
    return any(fnmatchcase(each, form) for each in names for form in whole)


NOTHING = Allowed()
