"""Layers again and again: what is kept, that it goes on where it stopped, and what is said at the end."""

import json
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
from again import Kept, LayerOfRun, WholeRun, busy_loops, git, go_on, noted, read, report, state_of_product
from layers import Ended, Interruptions, Layer


def layer(name: str, script: str = "true", needs: tuple[str, ...] = ()) -> Layer:
    return Layer(name, ("sh", "-c", script), needs)


def go(kept: Kept, layers: Sequence[Layer], count: int, file: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("again.OUTPUT", file.parent)
    return go_on(kept, layers, count, file, Interruptions())


def test_whole_runs_are_counted_and_a_failure_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, file = Kept("p", ["a", "b"], 0), tmp_path / "kept.json"
    count = f"echo ran >> {tmp_path}/ran"
    layers = [layer("a", count), layer("b", "exit 3"), layer("c", count, needs=("b",))]
    assert go(kept, layers, 2, file, monkeypatch) == 1
    assert (tmp_path / "ran").read_text().split() == ["ran", "ran"]
    found = read(json.loads(file.read_text()))
    assert found == kept
    assert [[of.code for of in each.layers.values()] for each in found.runs] == [[0, 3, 1]] * 2


def test_it_goes_on_with_the_layers_that_its_last_run_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept("p", ["a", "b"], 0, [WholeRun("c1", 60.0, {"a": LayerOfRun(0, 50.0, 9.0)})])
    layers = [layer("a", "exit 7"), layer("b", f"echo ran >> {tmp_path}/ran")]
    assert go(kept, layers, 1, tmp_path / "kept.json", monkeypatch) == 0
    assert (tmp_path / "ran").read_text().split() == ["ran"]
    assert set(kept.runs[0].layers) == {"a", "b"}
    assert kept.runs[0].wall_s > 60.0
    assert go(kept, layers, 1, tmp_path / "kept.json", monkeypatch) == 0  # all are there


def test_a_test_that_was_run_again_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    again = {"tests": {"t::x": {"wall_s": 1.0, "failed": False, "run_again": True}}}
    kept, layers = Kept("p", ["a"], 0), [layer("a", f"echo '{json.dumps(again)}' > {tmp_path}/a.json")]
    assert go(kept, layers, 1, tmp_path / "kept.json", monkeypatch) == 1


def test_what_is_not_committed_is_of_the_product_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("again.ROOT", tmp_path)
    monkeypatch.setattr("again.PRODUCT", ("api",))
    (tmp_path / "api").mkdir()
    written = tmp_path / "api" / "x.py"
    written.write_text("1")
    git("init", "-q")
    git("add", ".")
    git("-c", "user.name=x", "-c", "user.email=x@y", "commit", "-qm", "x")
    (tmp_path / "README.md").write_text("of no matter")
    states = [state_of_product()]
    for file, content in ((written, "2"), (written.with_name("y.py"), "1"), (written.with_name("y.py"), "2")):
        file.write_text(content)
        states.append(state_of_product())
    assert len(set(states)) == 4
    written.write_text("1")
    (tmp_path / "api" / "y.py").unlink()
    assert state_of_product() == states[0]


def test_a_test_that_failed_and_those_that_take_long_are_read_from_what_the_layer_wrote(tmp_path: Path) -> None:
    tests = {
        f"t::{number}": {"wall_s": number, "cpu_s": 1.0, "failed": number == 1, "run_again": number == 2}
        for number in range(40)
    }
    (tmp_path / "toy.json").write_text(json.dumps({"tests": tests}))
    of = noted(Ended("toy", 1, 2.0, 1.0), tmp_path)
    assert of.failed == ["t::1", "t::2"]
    assert set(of.tests) == {f"t::{number}" for number in range(21, 40)}
    assert noted(Ended("types", 0, 2.0, 1.0), tmp_path).tests == {}


def test_the_report_has_minutes_failures_and_what_took_long() -> None:
    good = LayerOfRun(0, 60.0, 30.0, [], {"t::slow": 31.0, "t::quick": 2.0})
    bad = LayerOfRun(1, 90.0, 30.0, ["t::slow"], {"t::slow": 44.0})
    runs = [WholeRun("c1", 60.0, {"toy": good}), WholeRun("c2", 90.0, {"toy": bad})]
    said = list(report(Kept("p", ["toy"], 2, runs)))
    assert said[0] == "2 runs of toy beside 2 busy loops"
    assert "| 1 | c1 | 1.0 | none | 0 |" in said
    assert "| 2 | c2 | 1.5 | toy | 1 |" in said
    assert "- failed 1 times: `t::slow`" in said
    assert said[-2:] == ["- 31 to 44 s: `t::slow`", "- 2 to 2 s: `t::quick`"]


def test_each_choice_of_layers_has_a_file_of_its_own() -> None:
    assert Kept("p", ["all"], 0).file == "all.json"
    assert Kept("p", ["sim", "integration"], 2).file == "sim-integration-beside-2.json"
    assert read(asdict(Kept("p", ["all"], 0, [WholeRun("c")]))) == Kept("p", ["all"], 0, [WholeRun("c")])


def test_busy_loops_are_gone_afterwards() -> None:
    loops = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    before = loops.read_text().split()
    with busy_loops(2):
        assert len(loops.read_text().split()) == len(before) + 2
    assert loops.read_text().split() == before
