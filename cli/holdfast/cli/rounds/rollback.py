"""Going back to the code of an earlier round: what is asked for, decided before anything is done. Pure.

Only what is known to be that round's is gone back to: the image that it told, in a cluster; its commit and diff,
on this machine. Nothing else of a job is changed, and nobody but a person asks for it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.api.errors import InvalidInput, Problem
from holdfast.api.runmanifest import IMAGE, Code, Section
from holdfast.cli.rounds.chronicle import RoundTold


class ImageRollback(msgspec.Struct, frozen=True):
    """The image of one container of the job's template is to be another one."""

    container: str
    place: int
    now: str
    then: str

    @property
    def patch(self) -> list[dict[str, Any]]:
        """As a JSON patch, which is refused where the image is another one by then."""
        path = f"/spec/template/spec/containers/{self.place}"
        return [
            {"op": "test", "path": f"{path}/name", "value": self.container},
            {"op": "test", "path": f"{path}/image", "value": self.now},
            {"op": "replace", "path": f"{path}/image", "value": self.then},
        ]


def round_named(rounds: Sequence[RoundTold], number: int) -> RoundTold:
    """Raises InvalidInput naming those that told how they were started."""
    found = next((each for each in rounds if each.number == number), None)
    if found is None or found.manifest is None:
        told = [str(each.number) for each in rounds if each.manifest is not None]
        says = f"those that told how they were started: {', '.join(told[-10:]) or 'none'}"
        raise InvalidInput(Problem("round", number, says))
    return found


def image_rollback(round: RoundTold, template: Mapping[str, Any], trainer: str | None) -> ImageRollback | None:
    """From the image of the job's template to that of the round; None where it is the same.

    Raises InvalidInput where the round did not tell its image, or the template has no such container.
    """
    assert round.manifest is not None
    then = round.manifest.of(Section.VERSIONS).get(IMAGE, "")
    if not then or then == "?":
        fix = "it did not tell its image: an operator of before sets none; change the job's template yourself"
        raise InvalidInput(Problem("round", round.number, fix))
    containers = (template.get("spec") or {}).get("containers") or ()
    for place, each in enumerate(containers):
        if each.get("name") == trainer:
            now = str(each.get("image") or "")
            return None if now == then else ImageRollback(str(trainer), place, now, then)
    raise InvalidInput(Problem("template", trainer, "the job's template has no container that trains"))


def code_of(round: RoundTold) -> Code:
    """The code of the round, which can be laid out. Raises InvalidInput with why it cannot be."""
    assert round.manifest is not None
    code = round.manifest.code
    why = ""
    if not code.commit:
        why = code.unknown or "no commit is known"
    elif code.left_out:
        why = f"its diff is not whole ({code.left_out})"
    if why:
        fix = f"its code cannot be laid out: {why}; of files without a commit only hashes are kept"
        raise InvalidInput(Problem("round", round.number, fix))
    return code
