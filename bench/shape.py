"""The shape of the code: how many modules, lines and functions, beside peers whose code is liked.

    make shape                      this tree, and the peers as they were measured with this program
    make shape ARGS="PATH ..."      other trees as well, such as an unpacked wheel
    make shape ARGS=--names         and which modules of this tree are in circles, and which are alone

Columns: modules; lines; lines of the median module; functions for each 1,000 lines; lines of a function's body
without its docstring, mean and 90th percentile; share of lines that are imports; modules that import each other in
a circle; modules of fewer than 60 lines with one other module that imports them (alone).
"""

import argparse
import ast
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, quantiles
from typing import Final

ROOT: Final = Path(__file__).parents[1]
PARTS: Final[tuple[str, ...]] = tuple(
    tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["dev-mode-dirs"]
)
FLOOR: Final = 60
HEAD: Final = ("tree", "modules", "lines", "median", "fn/kLOC", "fn mean", "fn p90", "imports", "circles", "alone")


@dataclass(frozen=True)
class Shape:
    """A row of the table. Lengths in lines, `imports` a share; `names`: who is in `circles`, who `alone`."""

    tree: str
    modules: int
    lines: int
    median: float
    per_thousand: float
    mean: float
    p90: float
    imports: float
    circles: int
    alone: int
    names: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())

    def cells(self) -> tuple[str, ...]:
        return (
            self.tree,
            f"{self.modules:,}",
            f"{self.lines:,}",
            f"{self.median:.0f}",
            f"{self.per_thousand:.1f}",
            f"{self.mean:.1f}",
            f"{self.p90:.0f}",
            f"{self.imports:.1%}",
            str(self.circles),
            str(self.alone),
        )


@dataclass(frozen=True)
class Limit:
    """What this tree should come to, as the peers do or nearly so, however much it can do.

    No peer does all that this one does: how many lines and modules it has says nothing by itself.
    """

    what: str
    most: float

    def judged(self, value: float) -> str:
        return f"{'met   ' if value <= self.most else 'MISSED'} {self.what}: {value:,g}; at most {self.most:,g}"


# Measured with this program on the wheels of h11 0.16.0, httpx 0.28.1, kopf 1.45.2 and torchft-nightly 2026.10.26.
# Source: the wheels that these projects released
PEERS: Sequence[Shape] = (
    Shape("h11", 11, 2_568, 153, 37.0, 8.9, 26, 0.042, 2, 1),
    Shape("httpx", 23, 8_828, 248, 50.5, 9.3, 22, 0.039, 21, 2),
    Shape("kopf", 87, 17_953, 149, 38.7, 11.1, 28, 0.040, 0, 6),
    Shape("torchft", 57, 16_093, 135, 46.4, 13.8, 41, 0.045, 2, 4),
)


def shape_of(name: str, roots: Sequence[Path]) -> Shape:
    """Of all Python files below `roots`, each of which is a place that modules are imported from."""
    sources = {module: text for root in roots for module, text in _modules(root)}
    trees = {module: ast.parse(text) for module, text in sources.items()}
    lengths = [_body_lines(each) for tree in trees.values() for each in ast.walk(tree) if _is_function(each)]
    lines = [text.count("\n") for text in sources.values()]
    importers = _importers(trees)
    small = [module for module, count in zip(sources, lines, strict=True) if count < FLOOR]
    circles, alone = _in_circles(importers), tuple(each for each in small if len(importers[each]) == 1)
    return Shape(
        tree=name,
        modules=len(sources),
        lines=sum(lines),
        median=median(lines),
        per_thousand=1000 * len(lengths) / sum(lines),
        mean=mean(lengths),
        p90=quantiles(lengths, n=10)[-1],
        imports=sum(map(_import_lines, trees.values())) / sum(lines),
        circles=len(circles),
        alone=len(alone),
        names=(circles, alone),
    )


def _modules(root: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(root.rglob("*.py")):
        yield ".".join(path.relative_to(root).with_suffix("").parts), path.read_text()


def _is_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def _body_lines(function: ast.AST) -> int:
    assert isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
    body = function.body
    if len(body) > 1 and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    return (body[-1].end_lineno or 0) - body[0].lineno + 1


def _import_lines(tree: ast.Module) -> int:
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    return sum((node.end_lineno or 0) - node.lineno + 1 for node in found)


def _importers(trees: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """By module, those of the same tree that import it."""
    importers: dict[str, set[str]] = {module: set() for module in trees}
    for module, tree in trees.items():
        for whole, name in _imported(module, tree):
            inner = ".".join(filter(None, (whole, name)))
            meant = (inner, f"{inner}.__init__", whole, f"{whole}.__init__")
            found = next((each for each in meant if each in importers), module)
            if found != module:
                importers[found].add(module)
    return importers


def _imported(module: str, tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Module and name, which may be that of a module in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((each.name, "") for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(module.split(".")[: -node.level]) if node.level else ""
            whole = ".".join(filter(None, (base, node.module)))
            yield from ((whole, each.name) for each in node.names)


def _in_circles(importers: Mapping[str, set[str]]) -> tuple[str, ...]:
    """The modules that are left when those that nobody, or only modules left out before, imports are left out."""
    left = {module: set(users) for module, users in importers.items()}
    while free := {module for module, users in left.items() if not users & left.keys()}:
        for module in free:
            del left[module]
    imports: dict[str, set[str]] = {module: set() for module in left}
    for module, users in left.items():
        for user in users & left.keys():
            imports[user].add(module)
    while free := {module for module, used in imports.items() if not used & imports.keys()}:
        for module in free:
            del imports[module]
    return tuple(imports)


def _tree(path: str) -> Path:
    """A folder with modules below it."""
    folder = Path(path)
    if not any(folder.rglob("*.py")):
        raise argparse.ArgumentTypeError(
            f"{path}: no folder with Python files; unpack a wheel, and give its folder"
        )
    return folder


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", metavar="PATH", nargs="*", type=_tree, help="another tree to measure")
    parser.add_argument(
        "--names", action="store_true", help="say which modules are in circles and which are alone"
    )
    given = parser.parse_args(arguments)
    ours = shape_of("holdfast", [ROOT / part for part in PARTS])
    others = [shape_of(path.name, [path]) for path in given.paths]
    rows = [HEAD, *(each.cells() for each in (ours, *PEERS, *others))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        first, *numbers = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join((first.strip().ljust(widths[0]), *numbers)))
    print()
    print(Limit("modules for each 1,000 lines", 5).judged(round(1000 * ours.modules / ours.lines, 1)))
    print(Limit("functions for each 1,000 lines", 50).judged(round(ours.per_thousand, 1)))
    print(Limit("share of lines that are imports", 0.05).judged(round(ours.imports, 3)))
    print(Limit("modules in circles", 0).judged(ours.circles))
    for what, names in zip(("in a circle", "alone"), ours.names, strict=True):
        for name in names if given.names else ():
            print(f"{what}: {name}")


if __name__ == "__main__":
    main()
