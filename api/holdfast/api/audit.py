"""What the probes of a model answer: a figure, a verdict, where in the model, and what to change."""

from enum import StrEnum
from typing import Annotated

import msgspec

from holdfast.api.bounds import Figure, Many, Name, Text


class Probe(StrEnum):
    """What is asked of a model. SCALING and ROUTING are asked of what a script tells while it trains."""

    CAUSALITY = "causality"
    REDUCTION = "reduction"
    DETERMINISM = "determinism"
    AGREEMENT = "agreement"
    SCALING = "scaling"
    ROUTING = "routing"


class Soundness(StrEnum):
    """What a probe says. UNKNOWN: it could not measure, and nobody may take it for sound."""

    SOUND = "sound"
    SUSPECT = "suspect"
    UNKNOWN = "unknown"


class ProbeAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One answer of one probe.

    `figure` is what was measured, in `unit`; None when nothing was, or it is not finite. `where` is the qualified
    name of a module, parameter or layer, empty for the model as a whole. `change` is what to do, empty for SOUND.
    """

    probe: Probe
    verdict: Soundness
    says: Text
    figure: Figure | None = None
    unit: Name = ""
    where: Text = ""
    change: Text = ""

    @classmethod
    def unknown(cls, probe: Probe, says: str, change: str) -> "ProbeAnswer":
        """Nothing was measured, for what it `says`."""
        return cls(probe=probe, verdict=Soundness.UNKNOWN, says=says, change=change)


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """The answers of the probes that were run; `not_run` says of each other probe what the script lacks for it."""

    answers: Annotated[tuple[ProbeAnswer, ...], Many]
    not_run: dict[Probe, Text]

    @property
    def verdict(self) -> Soundness:
        """SUSPECT when one answer is; else UNKNOWN when one is, or there is none."""
        said = {each.verdict for each in self.answers}
        if Soundness.SUSPECT in said:
            return Soundness.SUSPECT
        return Soundness.SOUND if said == {Soundness.SOUND} else Soundness.UNKNOWN
