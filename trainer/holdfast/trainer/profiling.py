"""A profile of this rank over some steps, by torch's profiler: a trace, and its collectives in lines."""

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from holdfast.api.bounds import LINE_LENGTH_MAX
from holdfast.api.profile import ProfileTold, ProfileWanted

logger = logging.getLogger(__name__)

LINES_MAX: Final = 16


class Span(NamedTuple):
    """One event of a trace, in microseconds from the same instant."""

    name: str
    shape: str
    start_us: float
    end_us: float


class Profiling:
    """Belongs to the training thread: begun at the end of the next step, over `wanted.steps` later.

    `say` is called from a thread of its own, once the trace is written below `folder`.
    """

    def __init__(
        self, wanted: ProfileWanted, rank: int, folder: Path, say: Callable[[ProfileTold], object]
    ) -> None:
        self._wanted, self._rank, self._folder, self._say = wanted, rank, folder, say
        self._profiler: Any = None
        self._left = wanted.steps

    def completed(self) -> bool:
        """A step is complete; whether this was the last that is wanted. Never raises: training goes on."""
        try:
            return self._go_on()
        except Exception as error:  # a profiler that is in use by the script, or cannot run here
            self._tell(problem=f"it could not be profiled: {error}")
            return True

    def _go_on(self) -> bool:
        if self._profiler is None:
            activities = [torch.profiler.ProfilerActivity.CPU]
            if torch.cuda.is_available():
                activities.append(torch.profiler.ProfilerActivity.CUDA)
            self._profiler = torch.profiler.profile(activities=activities, record_shapes=True)
            self._profiler.start()
            return False
        self._left -= 1
        self._profiler.step()
        if self._left:
            return False
        self._profiler.stop()
        threading.Thread(target=self._write, name="holdfast-profile", daemon=True).start()
        return True

    def _write(self) -> None:
        path = self._folder / f"round-{self._wanted.round}-rank-{self._rank}-{self._wanted.number}.json.gz"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._profiler.export_chrome_trace(str(path))
            collectives, computing = spans_of(self._profiler.events())
            lines = summary_of(collectives, computing, self._wanted.steps)
            self._tell(path=str(path.resolve()), size=path.stat().st_size, summary=lines)
        except Exception as error:
            logger.warning("the profile could not be written path=%s", path, exc_info=True)
            self._tell(problem=f"its trace could not be written to {path}: {error}")

    def _tell(self, **fields: Any) -> None:
        wanted = self._wanted
        self._say(ProfileTold(wanted.round, wanted.number, self._rank, **fields))


def spans_of(events: Iterable[Any]) -> tuple[list[Span], list[Span]]:
    """Collectives, and what computes: on the device where there is one, else on the thread that trains.

    The names are those that torch gives: "nccl:all_reduce" and "gloo:all_reduce" with their shapes, kernels of
    NCCL that begin with "ncclDevKernel", operators that begin with "aten::".
    """
    known = list(events)
    on_device = [each for each in known if each.device_type.name == "CUDA"]
    if on_device:
        collectives = [_span(each) for each in on_device if each.name.startswith("nccl")]
        return collectives, [_span(each) for each in on_device if not each.name.startswith("nccl")]
    collectives = [_span(each) for each in known if each.name.startswith(("nccl:", "gloo:"))]
    return collectives, [_span(each) for each in known if each.name.startswith("aten::")]


def _span(event: Any) -> Span:
    shapes = ", ".join(str(each) for each in event.input_shapes or () if each)
    name = str(event.name).partition("(")[0].removeprefix("gloo:").removeprefix("nccl:")
    return Span(name[:80], shapes[:80], float(event.time_range.start), float(event.time_range.end))


def summary_of(collectives: Sequence[Span], computing: Sequence[Span], steps: int) -> tuple[str, ...]:
    """A line for all collectives, then one for each kind and size, the longest first."""
    if not collectives:
        return (f"no collective in {steps} steps",)
    busy = merged((each.start_us, each.end_us) for each in computing)
    kinds: dict[tuple[str, str], list[Span]] = defaultdict(list)
    for each in collectives:
        kinds[each.name, each.shape].append(each)
    all_ms = sum(end - start for start, end in merged((each.start_us, each.end_us) for each in collectives)) / 1e3
    shown_ms = exposed_us(collectives, busy) / 1e3
    begin = min(each.start_us for each in (*collectives, *computing))
    span_ms = (max(each.end_us for each in (*collectives, *computing)) - begin) / 1e3
    share = shown_ms / span_ms if span_ms > 0.0 else 0.0
    lines = [
        f"{steps} steps in {span_ms:.4g} ms: {all_ms:.4g} ms of collectives, {shown_ms:.4g} ms of it not hidden "
        f"behind computing ({share:.0%} of the time)"
    ]
    longest = sorted(kinds.items(), key=lambda kind: -sum(each.end_us - each.start_us for each in kind[1]))
    for (name, shape), spans in longest[:LINES_MAX]:
        took_ms = sum(each.end_us - each.start_us for each in spans) / 1e3
        of = f" of {shape}" if shape else ""
        lines.append(
            f"{name}{of}: {len(spans)} times, {took_ms:.4g} ms, {exposed_us(spans, busy) / 1e3:.4g} ms not hidden"
        )
    if (rest := len(longest) - LINES_MAX) > 0:
        lines.append(f"{rest} other kinds of collectives took less")
    return tuple(line[:LINE_LENGTH_MAX] for line in lines)


def merged(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The same time without overlaps, in order."""
    found: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


def exposed_us(spans: Sequence[Span], busy: Sequence[tuple[float, float]]) -> float:
    """How much of the time of `spans` lies in none of `busy`, which do not overlap and are in order."""
    total, at = 0.0, 0
    for start, end in merged((each.start_us, each.end_us) for each in spans):
        total += end - start
        while at < len(busy) and busy[at][1] <= start:
            at += 1
        ahead = at
        while ahead < len(busy) and busy[ahead][0] < end:
            total -= min(end, busy[ahead][1]) - max(start, busy[ahead][0])
            ahead += 1
    return total
