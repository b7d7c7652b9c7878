"""The hard stops on size, held from the first commit."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from parts import PARTS

ROOT = Path(__file__).parents[3]
FOLDERS = (
    *PARTS,
    "bench",
    "examples",
    "release",
)
MODULE_LINES_MAX = 900  # a module is a subject, not a size
FUNCTION_LINES_MAX = 60
PARAMETERS_MAX = 6
# A constructor or public entry point whose parameters are the words of its users, all keyword-only.
MANY_PARAMETERS: frozenset[str] = frozenset()

FORBIDDEN_NAMES = ("utils", "util", "common", "helpers", "helper", "constants", "manager", "misc")

SOURCES = sorted(path for part in FOLDERS for path in (ROOT / part).rglob("*.py"))


def functions(tree: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = function.body
    if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant) and len(body) > 1:
        body = body[1:]  # the docstring is a contract, not code
    return (body[-1].end_lineno or 0) - body[0].lineno + 1


def is_command(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether click calls it: its parameters are the command's flags."""
    return any(
        "option" in ast.unparse(each) or "argument" in ast.unparse(each) for each in function.decorator_list
    )


def too_large(path: Path) -> Iterator[str]:
    """What of one source file goes beyond the hard stops, a line for each."""
    text, name = path.read_text(), path.relative_to(ROOT)
    if text.count("\n") > MODULE_LINES_MAX:
        yield f"{name}: {text.count(chr(10))} lines, split it by concept"
    for function in functions(ast.parse(text)):
        here = f"{name}:{function.lineno} {function.name}"
        if body_lines(function) > FUNCTION_LINES_MAX:
            yield f"{here} is {body_lines(function)} lines long"
        arguments = function.args.posonlyargs + function.args.args + function.args.kwonlyargs
        count = len([a for a in arguments if a.arg not in ("self", "cls")])
        if count > PARAMETERS_MAX and function.name not in MANY_PARAMETERS and not is_command(function):
            yield f"{here} takes {count} parameters"


def test_every_source_file_stays_within_the_hard_stops() -> None:
    assert len(SOURCES) > 20
    assert [offence for path in SOURCES for offence in too_large(path)] == []


def test_every_source_file_is_named_by_a_noun_of_the_domain() -> None:
    assert [path for path in SOURCES if path.stem in FORBIDDEN_NAMES] == []


def test_what_is_too_large_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("test_size_limits.ROOT", tmp_path)
    line, seven = "    x = 1\n", "a, b, c, d, e, f, g"
    written = tmp_path / "large.py"
    written.write_text(f"def long():\n{line * 61}\ndef wide({seven}): ...\n" + "\n" * MODULE_LINES_MAX)
    lines, long, wide = too_large(written)
    assert (long, wide) == ("large.py:1 long is 61 lines long", "large.py:64 wide takes 7 parameters")
    assert lines.startswith(f"large.py: {MODULE_LINES_MAX + 64} lines")
    written.write_text(f"@option('--a')\ndef wide({seven}): ...\n")
    assert list(too_large(written)) == []


def test_no_init_file_makes_a_top_level_folder_or_the_namespace_a_package() -> None:
    for part in FOLDERS:
        assert not (ROOT / part / "__init__.py").exists(), f"{part}/ would shadow other modules"
        assert not (ROOT / part / "holdfast" / "__init__.py").exists(), "holdfast is a namespace package"
