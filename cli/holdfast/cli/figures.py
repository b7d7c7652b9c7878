"""A job's figures over time, as far as somebody heard them: what is plotted, and what rounds are compared by."""

import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from holdfast.api.decoding import decode_json
from holdfast.api.errors import Malformed, Unavailable

POINTS: Final = 4096
"""As many as a console answers with at the most."""
Column = tuple[float | None, ...]


class Figures(msgspec.Struct, frozen=True):
    """One point for each `at` (watchdog's clock, seconds), oldest first; None is not known.

    `step` is the lowest newest step; `loss` the median over the ranks; `tokens_s` of all ranks; `step_s` the
    slowest rank's; `mfu` a ratio.
    """

    at: tuple[float, ...] = ()
    step: Column = ()
    loss: Column = ()
    tokens_s: Column = ()
    step_s: Column = ()
    mfu: Column = ()

    def between(self, began: float, ended: float) -> "Figures":
        """The points from `began` to `ended`, both included."""
        kept = [place for place, at in enumerate(self.at) if began <= at <= ended]
        chosen = {name: tuple(getattr(self, name)[place] for place in kept) for name in self.__struct_fields__}
        return Figures(**chosen)

    def known(self, name: str) -> Sequence[tuple[float, float]]:
        """The points at which the figure is known, with their time."""
        return [(at, value) for at, value in zip(self.at, getattr(self, name), strict=True) if value is not None]


class _Told(msgspec.Struct, frozen=True):
    """What a console answers of a job's series; further columns are passed over."""

    at: tuple[float, ...]
    step: Column
    loss_median: Column
    tokens_s: Column
    step_s: Column
    mfu: Column


def read_figures(content: bytes) -> Figures:
    """The figures in a console's answer. Raises Unavailable when they are none."""
    try:
        told = decode_json(content, _Told)
    except Malformed as error:
        raise Unavailable(f"the series of the job are not understood: {error}") from error
    columns: Mapping[str, Any] = {
        "at": told.at,
        "step": told.step,
        "loss": told.loss_median,
        "tokens_s": told.tokens_s,
        "step_s": told.step_s,
        "mfu": told.mfu,
    }
    if len({len(each) for each in columns.values()}) != 1:
        raise Unavailable("the series of the job are not understood: their columns differ in length")
    return Figures(**columns)


def series_path(job: str) -> str:
    """Where a console answers with the series of a job."""
    namespace, _, name = job.partition("/")
    quoted = "/".join(urllib.parse.quote(each, safe="") for each in (namespace, name))
    return f"/api/v1/jobs/{quoted}/series?points={POINTS}"


def kept_series(file: Path, job: str) -> bytes:
    """The series of a job that a console kept in a file. Raises Unavailable where there are none."""
    try:
        return kept_in(file.read_bytes(), job)
    except (OSError, Malformed) as error:
        why = "no console followed the run, or none was installed: nobody kept its figures over time"
        raise Unavailable(why) from error


def kept_in(content: bytes, job: str) -> bytes:
    """The series of a job in such a file. Raises Malformed where there are none."""
    kept = decode_json(content, dict[str, msgspec.Raw])
    if job not in kept:
        raise Malformed(f"it holds nothing of {job}")
    return bytes(kept[job])
