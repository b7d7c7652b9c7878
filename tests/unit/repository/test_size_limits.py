"""The hard stops on size, held from the first commit."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PARTS = ("api", "trainer", "checkpoint", "agent", "watchdog", "operator", "cli", "bench", "examples")
MODULE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60
PARAMETERS_MAX = 6
# A constructor or public entry point whose parameters are the words of its users, all keyword-only.
MANY_PARAMETERS: frozenset[str] = frozenset()

SOURCES = sorted(path for part in PARTS for path in (ROOT / part).rglob("*.py"))


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


def test_there_are_sources_to_measure() -> None:
    assert len(SOURCES) > 20


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_source_file_stays_within_the_hard_stops(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= MODULE_LINES_MAX, f"{path}: split it by concept"
    for function in functions(ast.parse(text)):
        assert body_lines(function) <= FUNCTION_LINES_MAX, f"{path}:{function.lineno} {function.name} is too long"
        arguments = function.args.posonlyargs + function.args.args + function.args.kwonlyargs
        count = len([a for a in arguments if a.arg not in ("self", "cls")])
        if not is_command(function) and function.name not in MANY_PARAMETERS:
            assert count <= PARAMETERS_MAX, f"{path}:{function.lineno} {function.name} takes {count} parameters"


FORBIDDEN_NAMES = ("utils", "util", "common", "helpers", "helper", "constants", "manager", "misc")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_source_file_is_named_by_a_noun_of_the_domain(path: Path) -> None:
    assert path.stem not in FORBIDDEN_NAMES


def test_no_init_file_makes_a_top_level_folder_or_the_namespace_a_package() -> None:
    for part in (*PARTS, "operator"):
        assert not (ROOT / part / "__init__.py").exists(), f"{part}/ would shadow other modules"
        assert not (ROOT / part / "holdfast" / "__init__.py").exists(), "holdfast is a namespace package"
