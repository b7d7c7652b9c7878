"""Runs layers again and again, and says what was not as it should be.

    python tests/layers/again.py --runs 5                            everything, as `make test FULL=1`, five times
    python tests/layers/again.py --runs 5 --beside 2 integration     these layers, beside two busy loops

Tests that fail by chance and tests that take long are found only so. What a layer came to is kept as soon as it
has ended, in a file below build/again for each choice of layers; called again with the same words, it goes on
where it stopped, also after a change of tests alone. A change of the product, committed or not, begins anew. The
end is a report: minutes of each run, each test that failed, or took longer than 20 s, and the ten slowest. It
fails when a layer failed, or a test had to be run again.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from layers import ALL, OUTPUT, ROOT, Ended, Interruptions, Layer, chosen, run

KEPT = ROOT / "build" / "again"
PRODUCT = (
    *("api", "wire", "trainer", "checkpoint", "agent", "watchdog", "operator", "console", "planner"),
    *("simulator", "integrations", "cli", "helm", "images"),
)
LONG_S = 20.0
SLOWEST = 10
BUSY = "while True: pass"


@dataclass
class LayerOfRun:
    """How one layer of a run ended. `tests` are those that failed, also where a second try passed, or took
    longest, with seconds by the clock.
    """

    code: int
    wall_s: float
    cpu_s: float
    failed: list[str] = field(default_factory=list)
    tests: dict[str, float] = field(default_factory=dict)
    not_proved: int = 0


@dataclass
class WholeRun:
    commit: str
    wall_s: float = 0.0
    layers: dict[str, LayerOfRun] = field(default_factory=dict)


@dataclass
class Kept:
    """What is in a file: of one state of the product, one choice of layers and one number of busy loops."""

    product: str
    words: list[str]
    beside: int
    runs: list[WholeRun] = field(default_factory=list)

    @property
    def file(self) -> str:
        return "-".join([*self.words, *(["beside", str(self.beside)] if self.beside else [])]) + ".json"

    def open_run(self, commit: str, layers: Sequence[Layer], count: int) -> WholeRun | None:
        """The run that is not whole yet, or a new one; None when all are there."""
        if not self.runs or all(each.name in self.runs[-1].layers for each in layers):
            if len(self.runs) == count:
                return None
            self.runs.append(WholeRun(commit))
        return self.runs[-1]


def read(found: Mapping[str, Any]) -> Kept:
    """What `asdict` made of it."""
    runs = [
        WholeRun(each["commit"], each["wall_s"], {name: LayerOfRun(**of) for name, of in each["layers"].items()})
        for each in found["runs"]
    ]
    return Kept(found["product"], found["words"], found["beside"], runs)


def noted(ended: Ended, folder: Path) -> LayerOfRun:
    """With what the layer wrote of its tests, if it has any."""
    of = LayerOfRun(ended.code, ended.wall_s, ended.cpu_s, not_proved=sum(each.tests for each in ended.not_proved))
    try:
        tests = json.loads((folder / f"{ended.name}.json").read_text())["tests"]
    except (OSError, ValueError, LookupError):
        return of
    slowest = sorted(tests, key=lambda test: -tests[test]["wall_s"])
    of.failed = [test for test in tests if tests[test]["failed"] or tests[test]["run_again"]]
    of.tests = {
        test: round(tests[test]["wall_s"], 1)
        for place, test in enumerate(slowest)
        if place < SLOWEST or tests[test]["wall_s"] > LONG_S
    }
    return of


def report(kept: Kept) -> Iterator[str]:
    """Markdown, so that it can be kept where it is read."""
    beside = f" beside {kept.beside} busy loops" if kept.beside else ""
    yield f"{len(kept.runs)} runs of {' '.join(kept.words)}{beside}"
    yield ""
    yield "| run | commit | minutes | layers that failed | tests that failed |"
    yield "|---|---|---|---|---|"
    for number, each in enumerate(kept.runs, 1):
        bad = [name for name, of in each.layers.items() if of.code]
        failed = sum(len(of.failed) for of in each.layers.values())
        yield f"| {number} | {each.commit} | {each.wall_s / 60:.1f} | {', '.join(bad) or 'none'} | {failed} |"
    yield ""
    of_all = [of for each in kept.runs for of in each.layers.values()]
    failures = [test for of in of_all for test in of.failed]
    yield from (f"- failed {failures.count(test)} times: `{test}`" for test in sorted(set(failures)))
    took: dict[str, list[float]] = {}
    for of in of_all:
        for test, wall_s in of.tests.items():
            took.setdefault(test, []).append(wall_s)
    slowest = sorted(took, key=lambda test: -max(took[test]))
    long = sum(max(each) > LONG_S for each in took.values())
    yield f"{long} tests took over {LONG_S:.0f} s at least once; the {SLOWEST} slowest of all, and all of those:"
    yield ""
    for test in slowest[: max(long, SLOWEST)]:
        yield f"- {min(took[test]):.0f} to {max(took[test]):.0f} s: `{test}`"


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """So many processes that always want a core, and are gone afterwards."""
    loops = [subprocess.Popen([sys.executable, "-S", "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for each in loops:
            each.kill()
            each.wait()


def state_of_product() -> str:
    """In one number: of what is committed of its folders, and of what is not."""
    trees = git("rev-parse", *(f"HEAD:{each}" for each in PRODUCT))
    changed = git("diff", "--binary", "HEAD", "--", *PRODUCT)
    fresh = git("ls-files", "--others", "--exclude-standard", "--", *PRODUCT).splitlines()
    said = [trees, changed, *(git("hash-object", each) for each in fresh)]
    return git("hash-object", "--stdin", stdin="\n".join(said))[:12]


def git(*words: str, stdin: str = "") -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, input=stdin, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def go_on(kept: Kept, layers: Sequence[Layer], count: int, file: Path, heard: Interruptions) -> int:
    """Until there are so many whole runs.

    Returns 130 after an interruption, else 1 when a layer failed or a test was run again.
    """

    def keep() -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh = file.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(kept), indent=1))
        fresh.replace(file)

    while (this := kept.open_run(git("rev-parse", "--short", "HEAD"), layers, count)) is not None:
        before_s, began = this.wall_s, time.monotonic()

        def note(ended: Ended, this: WholeRun = this, before_s: float = before_s, began: float = began) -> None:
            this.layers[ended.name] = noted(ended, OUTPUT)
            this.wall_s = before_s + time.monotonic() - began
            keep()

        left = [each for each in layers if each.name not in this.layers]
        code = run(left, heard, OUTPUT, note=note)
        if code == 130:
            return code
        for each in left:  # what was not started, for what it needs failed
            this.layers.setdefault(each.name, LayerOfRun(1, 0.0, 0.0))
        keep()
    return int(any(of.code or of.failed for each in kept.runs for of in each.layers.values()))


def main() -> int:
    parser = argparse.ArgumentParser(description="Run layers again and again.")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--beside", type=int, default=0, help="busy loops that run all the while")
    parser.add_argument("words", nargs="*", default=[ALL], metavar="LAYER")
    said = parser.parse_args()
    try:
        layers = chosen(said.words)
    except ValueError as error:
        parser.error(str(error))
    kept = Kept(state_of_product(), said.words, said.beside)
    file = KEPT / kept.file
    if file.exists() and (before := read(json.loads(file.read_text()))).product == kept.product:
        kept = before
    heard = Interruptions()
    heard.listen()
    with busy_loops(said.beside):
        code = go_on(kept, layers, said.runs, file, heard)
    print(*report(kept), sep="\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
