"""What stands in a training script, by its syntax tree: nothing of it is ever run.

Modules beside the script that it imports are read as well; installed packages are not. Names are followed through
imports and no further: what a script calls by way of a variable is seen as a method of nobody knows what.
"""

import ast
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from holdfast.api.errors import InvalidInput, Problem

FILES_MAX: Final = 64
BYTES_MAX: Final = 4 << 20
_FIX: Final = "name a training script, a file of Python"


@dataclass(frozen=True, slots=True)
class Call:
    """One call. `name` is the whole name where imports tell it ("torch.cuda.set_device"), else the method with a
    dot before it (".cuda"). `at_import`: it is made while its file is imported. `words` are the keywords it names,
    each with its value where that is a constant, else None; `first` is its first argument, likewise. `unless` is
    the setting that keeps it from being made, as the file has it ("init_from = 'scratch' at train.py:3"). `of` is
    the variable whose method it is, `to` the one that takes what it returns; empty: neither. The base of a class
    that the script defines is told of like a call: instances of it are made, by whatever name.
    """

    name: str
    place: str
    at_import: bool
    words: Mapping[str, object]
    first: object = None
    unless: str = ""
    of: str = ""
    to: str = ""


@dataclass(frozen=True, slots=True)
class Script:
    """What was read. `imports` and `sets` (variables of the environment that it writes, unless it looks first) are
    by name, with the place of the first; `refused` is why files could not be read as Python.
    """

    calls: tuple[Call, ...]
    imports: Mapping[str, str]
    sets: Mapping[str, str] = field(default_factory=dict)
    refused: tuple[str, ...] = ()

    def called(self, *names: str) -> tuple[Call, ...]:
        """The calls of these names; one that begins with a dot is a method of anything."""
        return tuple(
            call
            for call in self.calls
            for name in names
            if call.name == name or (name.startswith(".") and call.name.endswith(name))
        )

    def imports_from(self, package: str) -> str:
        """Where it first imports something of a package; empty: nowhere."""
        inside = f"{package}."
        return next((at for name, at in self.imports.items() if name == package or name.startswith(inside)), "")


def read_script(path: Path) -> Script:
    """Read the script and what it imports from its own folder. Raises InvalidInput when it is no Python file."""
    if path.suffix == ".ipynb":
        raise InvalidInput(
            Problem("SCRIPT", str(path), "write the notebook out as a script (nbconvert --to script)")
        )
    if not path.is_file():
        raise InvalidInput(Problem("SCRIPT", str(path), f"there is no such file; {_FIX}"))
    waiting, seen = deque([path]), {path}
    readers: list[_Reader] = []
    refused: list[str] = []
    while waiting and len(readers) < FILES_MAX:
        file = waiting.popleft()
        reader = _Reader(file.name)
        try:
            if file.stat().st_size > BYTES_MAX:
                raise InvalidInput(
                    Problem("SCRIPT", str(file), f"it is larger than {BYTES_MAX >> 20} MiB; {_FIX}")
                )
            reader.visit(ast.parse(file.read_bytes(), str(file)))
        except SyntaxError as error:
            refused.append(f"{file.name}:{error.lineno}: {error.msg}")
        except (OSError, ValueError, RecursionError, MemoryError) as error:
            # Of what is nested too deeply Python's parser says nothing but that it has no memory for it.
            refused.append(f"{file.name}: {error or 'it is nested too deeply to be read'}")
        readers.append(reader)
        for beside in _beside(path.parent, reader.imports):
            if beside not in seen:
                seen.add(beside)
                waiting.append(beside)
    first: dict[str, str] = {}
    sets: dict[str, str] = {}
    for reader in readers:
        first = {**reader.imports, **first}
        sets = {**reader.sets, **sets}
    calls = tuple(call for reader in readers for call in reader.calls)
    return Script(calls, first, sets, tuple(refused))


def _beside(folder: Path, imports: Mapping[str, str]) -> Iterator[Path]:
    """The files of imported modules that lie in the script's folder, which is where Python looks first."""
    for name in imports:
        parts = name.split(".")
        for count in range(len(parts), 0, -1):
            place = folder.joinpath(*parts[:count])
            found = next(
                (each for each in (place.with_suffix(".py"), place / "__init__.py") if each.is_file()), None
            )
            if found is not None:
                yield found


class _Reader(ast.NodeVisitor):
    """Reads one file."""

    def __init__(self, name: str) -> None:
        self._file = name
        self._names: dict[str, str] = {}  # what a name stands for
        self._depth = 0  # of what runs later than at import
        self._conditions = 0
        self._taken: dict[int, str] = {}  # by call: the variable that takes what it returns
        self._settings: dict[str, tuple[object, str]] = {}  # constants of the file, each with its place
        self._unless = ""
        self.calls: list[Call] = []
        self.imports: dict[str, str] = {}
        self.sets: dict[str, str] = {}

    def _place(self, node: ast.AST) -> str:
        return f"{self._file}:{getattr(node, 'lineno', 0)}"

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.imports.setdefault(alias.name, self._place(node))
            self._names[alias.asname or alias.name.partition(".")[0]] = (
                alias.name if alias.asname else alias.name.partition(".")[0]
            )

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        for alias in node.names:
            name = f"{module}.{alias.name}".strip(".")
            self.imports.setdefault(name, self._place(node))
            self._names[alias.asname or alias.name] = name

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for outside in (*node.decorator_list, node.args):
            self.visit(outside)
        self._later(node.body)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._later([node.body])

    def visit_If(self, node: ast.If) -> None:
        """What only the script itself does, and no import of it: `if __name__ == "__main__"`."""
        test = node.test
        if isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__":
            self._later(node.body)
            for each in node.orelse:
                self.visit(each)
            return
        self._conditions += 1
        self.visit(test)
        outside, self._unless = self._unless, self._unless or self._refused_by(test)
        for each in node.body:
            self.visit(each)
        self._unless = outside
        for each in node.orelse:
            self.visit(each)
        self._conditions -= 1

    def _refused_by(self, test: ast.expr) -> str:
        """The setting by which `name == constant` does not hold, as it is written at the top of the file."""
        if not (isinstance(test, ast.Compare) and isinstance(test.left, ast.Name)):
            return ""
        value, place = self._settings.get(test.left.id, (None, ""))
        wanted = _constant(test.comparators[0])
        if not isinstance(test.ops[0], ast.Eq) or value is None or wanted is None or value == wanted:
            return ""
        return f"{test.left.id} = {value!r} at {place}"

    def _later(self, body: list[ast.stmt] | list[ast.expr]) -> None:
        self._depth += 1
        for each in body:
            self.visit(each)
        self._depth -= 1

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            of_environment = isinstance(target, ast.Subscript) and self._name_of(target.value) == "os.environ"
            self._taken[id(node.value)] = _variable(target)
            if isinstance(target, ast.Subscript) and of_environment and not self._conditions:
                self.sets.setdefault(str(_constant(target.slice)), self._place(node))
            is_setting = isinstance(target, ast.Name) and self._depth == 0 and not self._conditions
            value = _constant(node.value) if is_setting else None
            names = (each.id for each in ast.walk(target) if isinstance(each, ast.Name))
            self._settings.update((name, (value, self._place(node))) for name in names)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = self._name_of(node.func)
        if name:
            words = {each.arg: _constant(each.value) for each in node.keywords if each.arg is not None}
            first = _constant(node.args[0]) if node.args else None
            call = Call(name, self._place(node), self._depth == 0, words, first, self._unless)
            of = _variable(node.func.value) if isinstance(node.func, ast.Attribute) else ""
            self.calls.append(replace(call, of=of, to=self._taken.get(id(node), "")))
        self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for base in node.bases:
            if name := self._name_of(base):
                self.calls.append(Call(name, self._place(node), at_import=False, words={}))
                self._names.setdefault(node.name, name)
        self.generic_visit(node)

    def _name_of(self, node: ast.expr) -> str:
        """The whole name of what is called; a dot and its last part where nobody knows of what; or nothing."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.insert(0, node.attr)
            node = node.value
        if isinstance(node, ast.Name) and node.id in self._names:
            return ".".join((self._names[node.id], *parts))
        if parts:
            return f".{parts[-1]}"
        return node.id if isinstance(node, ast.Name) else ""


def _variable(node: ast.expr) -> str:
    """The last part of a variable's name; empty where it is none."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _constant(node: ast.expr) -> object:
    """The value that is written there, lists of them too; None when it is worked out when it runs."""
    try:
        value: object = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    return value
