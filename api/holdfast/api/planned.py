"""What the plan of a job assumed. The job carries it as an annotation, to be compared with what is true.

The annotation is YAML. Its section `expects` is read here, for whoever watches the job; the others are the
question that the plan answered and the layout it chose, which `holdfast.planner.questionfile` reads.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
import yaml
from yaml.composer import ComposerError

from holdfast.api.errors import InvalidInput, Problem
from holdfast.api.policy import Expects

PLAN_ANNOTATION: Final = "holdfast.dev/plan"
PLAN_CHARACTERS_MAX: Final = 16 * 1024
DEPTH_MAX: Final = 8
FIX: Final = "write it with `holdfast plan --write`, or leave it out"
FIELD: Final = f"metadata.annotations[{PLAN_ANNOTATION}]"


class _PlainLoader(yaml.SafeLoader):
    """Mappings, lists and plain scalars. Who may write an annotation may be anybody: references, of which few
    characters make many values, tags and deep nesting are refused.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call] # the stubs have no types for it
        if getattr(event, "anchor", None) is not None or getattr(event, "tag", None) is not None:
            raise ComposerError(None, None, "neither references nor tags are read", event.start_mark)
        if self._depth >= DEPTH_MAX:
            raise ComposerError(None, None, f"more than {DEPTH_MAX} sections in one another", event.start_mark)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


def carried(annotations: Mapping[str, object]) -> Mapping[str, Mapping[str, object]] | None:
    """The sections of the plan that a job carries; None where it carries none. Raises InvalidInput."""
    text = annotations.get(PLAN_ANNOTATION)
    if text is None:
        return None
    if not isinstance(text, str):
        raise InvalidInput(Problem(FIELD, text, FIX))
    if len(text) > PLAN_CHARACTERS_MAX:
        raise InvalidInput(Problem(FIELD, f"{len(text)} characters", FIX))
    try:
        given = yaml.load(text, Loader=_PlainLoader)
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidInput(Problem(FIELD, " ".join(str(error).split()), FIX)) from None
    if not isinstance(given, dict) or not all(isinstance(each, dict) for each in given.values()):
        raise InvalidInput(Problem(FIELD, text[:80], FIX))
    return {str(name): each for name, each in given.items()}


def expects_of(annotations: Mapping[str, object]) -> Expects | None:
    """What the plan that a job carries counts on; None where it carries none. Raises InvalidInput."""
    sections = carried(annotations)
    if sections is None:
        return None
    try:
        return msgspec.convert(sections.get("expects", {}), Expects)
    except msgspec.ValidationError as error:
        raise InvalidInput(Problem(f"{FIELD}.expects", str(error), FIX)) from None
