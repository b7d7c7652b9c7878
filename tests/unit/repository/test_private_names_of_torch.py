"""Where private names of torch are used, and what a torch that lacks one does to a process."""

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.api.control import Reenters
from holdfast.api.round import Reentry
from holdfast.api.torchnames import TorchName
from holdfast.trainer import frameworks, torchcaches
from holdfast.trainer.torchcaches import KEPT, TorchCaches

ROOT = Path(__file__).parents[3]
PURPOSES = {
    "holdfast.agent.selftest.arithmetic": "agent/holdfast/agent/selftest/arithmetic.py",
    "holdfast.checkpoint.capture.torchstate": "checkpoint/holdfast/checkpoint/capture/torchstate.py",
    "holdfast.checkpoint.format.archive": "checkpoint/holdfast/checkpoint/format/archive.py",
    "holdfast.trainer.torchcaches": "trainer/holdfast/trainer/torchcaches.py",
    "holdfast.trainer.torchgroups": "trainer/holdfast/trainer/torchgroups.py",
    "holdfast.trainer.torchtensors": "trainer/holdfast/trainer/torchtensors.py",
}
"""The modules that use private names, one for each purpose. `bench/versions.py` prints what they list."""


def _is_private(dotted: str) -> bool:
    return any(each.startswith("_") and not each.startswith("__") for each in dotted.split("."))


def _imported(tree: ast.AST) -> Iterator[str]:
    """Private names of torch that a module imports when it runs: not those that only type checkers read."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for each in node.orelse:
                yield from _imported(ast.Module([each], []))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            names = (f"{node.module}.{each.name}" for each in node.names)
            yield from filter(_is_private, names)
        elif isinstance(node, ast.Import):
            yield from (
                each.name for each in node.names if each.name.startswith("torch.") and _is_private(each.name)
            )
        else:
            yield from _imported(node)


def _product() -> Iterator[Path]:
    for part in ("agent", "api", "checkpoint", "cli", "console", "integrations", "operator", "planner", "trainer"):
        yield from (ROOT / part).rglob("*.py")


def test_private_names_of_torch_are_imported_by_the_module_for_their_purpose_alone() -> None:
    found = {
        str(path.relative_to(ROOT)): names
        for path in _product()
        if (names := list(_imported(ast.parse(path.read_text()))))
    }
    assert set(found) - set(PURPOSES.values()) == set()


@pytest.mark.parametrize("module", PURPOSES)
def test_each_private_name_that_a_module_imports_is_in_its_list(module: str) -> None:
    listed = {str(each) for each in importlib.import_module(module).NAMES}
    assert set(_imported(ast.parse((ROOT / PURPOSES[module]).read_text()))) <= listed


@pytest.mark.parametrize("module", PURPOSES)
def test_the_pinned_torch_has_every_name(module: str) -> None:
    names: tuple[TorchName, ...] = importlib.import_module(module).NAMES
    assert [str(each) for each in names if not each.is_there] == []
    assert all(each.without for each in names)


@pytest.mark.parametrize("name", [name for name, _ in KEPT], ids=str)
def test_a_torch_without_one_of_its_caches_costs_new_processes_and_no_job(
    name: TorchName, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    importlib.import_module("torch.distributed.tensor")
    gone = TorchName(name.module, f"{name.name}_renamed", name.without)
    forgotten: list[str] = []
    kept = tuple((gone if each is name else each, lambda holder, last: forgotten.append(last)) for each, _ in KEPT)
    caches = TorchCaches(kept)
    monkeypatch.setattr(frameworks, "CACHES", caches)
    for own in (None, Reenters(Reentry.SAME_WORLD, "the script says so")):
        said = frameworks.reenters(own)
        assert said.reentry is Reentry.NEVER
        assert str(gone) in said.because
    caches.forget()
    assert len(forgotten) == len(KEPT) - 1, "the others are forgotten all the same"
    assert [record.name for record in caplog.records] == ["holdfast.trainer.torchcaches"], "said once"


def test_one_that_cannot_be_forgotten_as_it_was_ends_nothing_and_is_told_from_then_on() -> None:
    def takes_an_argument_now(holder: object, name: str) -> None:
        raise TypeError("missing 1 required positional argument")

    caches = TorchCaches(((TorchName("sys", "path", "nothing"), takes_an_argument_now),))
    assert caches.lacking() == ()
    caches.forget()
    assert caches.lacking() == ("sys.path",)


def test_nothing_is_imported_to_be_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchcaches, "sys", SimpleNamespace(modules={}))
    before = set(sys.modules)
    TorchCaches(
        ((TorchName("torch.distributed.nowhere", "cache", "nothing"), lambda *_: pytest.fail("called")),)
    ).forget()
    assert set(sys.modules) == before
