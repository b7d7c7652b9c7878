"""Whether a run that is cut goes on bit for bit, in cells of optimizer x wrapping x format x what a script keeps x
how it is cut; with Holdfast, and with torch.distributed.checkpoint used with care.

    make bench NAME=exact                         a covering set: each pair of values at least once
    make bench NAME=exact ARGS="--seed 2"         another one
    make bench NAME=exact ARGS="--all"            every cell: days
    make bench NAME=exact ARGS="--only fsdp2"     the cells of the set that have this value

A bench that was stopped goes on where it was, until the code changes. Each cell is trained undisturbed, then cut
and gone on with in new processes; losses, parameters, buffers, the optimizer's state, what else the script keeps
and the generators of random numbers are compared bit for bit. `lost`: they differ, and nothing was said. `torch
cannot`: the undisturbed run already fails, with torch's error.
"""

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from cells.axes import AXES, Cell, cells, covering
from cells.keepers import KEEPERS
from cells.outcome import EXACT, IMPOSSIBLE, LOST, REFUSED, SILENT, Outcome, outcome, undisturbed
from figure import BUILD, Figure, Goal, measured, publish

ROOT: Final = Path(__file__).resolve().parents[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--only", default="", metavar="VALUE")
    words = parser.parse_args()
    chosen = cells() if words.all else covering(words.seed)
    chosen = [each for each in chosen if not words.only or words.only in each.values()]
    if not chosen:
        known = ", ".join(value for values in AXES.values() for value in values)
        print(f"--only {words.only}: no cell has that value; there are: {known}", file=sys.stderr)
        return 2
    BUILD.mkdir(parents=True, exist_ok=True)
    path = BUILD / "exact-cells.jsonl"
    of = code()
    known = dict(_known(path, of))
    found: list[Outcome] = []
    with path.open("a") as file:
        for number, cell in enumerate(chosen, 1):
            whole = None
            for keeper in KEEPERS:
                each = known.get((cell, keeper))
                if each is None:
                    whole = whole or undisturbed(cell)
                    each = outcome(cell, keeper, whole)
                    if SILENT not in each.why:  # of a machine that is too busy, perhaps: looked at again
                        file.write(json.dumps({"code": of, "row": each.row()}) + "\n")
                        file.flush()
                found.append(each)
                print(f"{number}/{len(chosen)}  {keeper:9} {each.says:13} {cell}  {each.why}", flush=True)
    for line in table(found):
        print(line)
    return publish("exact", figures(found))


def code() -> str:
    """What the outcomes are of: the committed tree and what was changed in it."""
    git = ["git", "-C", str(ROOT)]
    tree = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    kept = ("bench", "checkpoint", "api")
    changed = subprocess.run([*git, "diff", "HEAD", "--", *kept], capture_output=True, check=False).stdout
    return f"{tree}+{len(changed)}"


def _known(path: Path, of: str) -> Iterator[tuple[tuple[Cell, str], Outcome]]:
    for line in path.read_text().splitlines() if path.exists() else ():
        said = json.loads(line)
        if said["code"] != of:
            continue
        row = json.loads(said["row"])
        cell = Cell(*(row[axis] for axis in AXES))
        yield (cell, row["keeper"]), Outcome(cell, row["keeper"], row["says"], row["why"])


def table(found: Sequence[Outcome]) -> Iterator[str]:
    """That of docs/exact.md: by value how many cells came to what."""
    keepers = list(KEEPERS)
    yield "| | cells | torch cannot | " + " | ".join(f"{each}: exact | lost | refused" for each in keepers) + " |"
    yield "|---|" + "---|" * (2 + 3 * len(keepers))
    for axis, values in AXES.items():
        for value in values:
            of = [each for each in found if getattr(each.cell, axis) == value]
            if of:
                yield _row(f"{axis}: {value}", of, keepers)
    yield _row("**all**", found, keepers)


def _row(name: str, of: Sequence[Outcome], keepers: Sequence[str]) -> str:
    counts = {keeper: Counter(each.says for each in of if each.keeper == keeper) for keeper in keepers}
    total = len(of) // len(keepers)
    fields = [str(counts[keeper][says]) for keeper in keepers for says in (EXACT, LOST, REFUSED)]
    return f"| {name} | {total} | {counts[keepers[0]][IMPOSSIBLE]} | " + " | ".join(fields) + " |"


def figures(found: Sequence[Outcome]) -> list[Figure]:
    """Ours: no cell is lost in silence, and none refused that torch.distributed.checkpoint restores."""
    ours = {each.cell: each for each in found if each.keeper == "holdfast"}
    theirs = {each.cell: each for each in found if each.keeper == "dcp"}
    possible = [cell for cell, each in ours.items() if each.says != IMPOSSIBLE]
    lost = sum(ours[cell].says == LOST for cell in possible)
    worse = sum(ours[cell].says == REFUSED and theirs[cell].says == EXACT for cell in possible)
    count = [float(len(possible) or 1)]
    return [
        measured(name, ours=[float(number)], other=count, unit="cells", target=0.0, goal=Goal.AT_MOST)
        for name, number in (("cells lost in silence", lost), ("cells refused that plain DCP restores", worse))
    ]


if __name__ == "__main__":
    sys.exit(main())
