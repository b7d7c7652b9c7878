"""Layers side by side: which starts when, what is said of it, and that an interruption reaches all of them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from layers import GROUPS, LAYERS, UNIT, Ended, Interruptions, Layer, Plan, chosen, run

MAKEFILE = Path(__file__).parents[3] / "Makefile"
Names = tuple[str, ...]


def layer(name: str, script: str = "", needs: Names = (), after: Names = (), is_background: bool = False) -> Layer:
    return Layer(name, ("sh", "-c", script or f"echo {name} ran"), needs, after, is_background)


def passed(name: str) -> Ended:
    return Ended(name, 0, 1.0, 0.5)


def test_no_more_layers_run_side_by_side_than_there_are_places() -> None:
    layers = [layer("build", is_background=True), *map(layer, "abcde")]
    plan = Plan(layers)
    first = list(plan.startable([]))
    assert [each.name for each in first] == ["build", "a", "b", "c"]
    assert list(plan.startable(first)) == []
    plan.note(passed("b"))
    assert [each.name for each in plan.startable([first[0], first[1], first[3]])] == ["d"]


@pytest.mark.parametrize(
    "second", [layer("b", needs=("a", "not asked for")), layer("b", after=("a", "not asked for"))]
)
def test_a_layer_waits_for_those_before_it_that_were_asked_for(second: Layer) -> None:
    plan = Plan([layer("a"), second])
    assert [each.name for each in plan.startable([])] == ["a"]
    assert list(plan.startable([])) == []
    plan.note(passed("a"))
    assert [each.name for each in plan.startable([])] == ["b"]


def test_a_layer_that_comes_after_a_failed_one_and_does_not_need_it_runs(tmp_path: Path) -> None:
    said: list[str] = []
    layers = [layer("bad", "exit 3"), layer("next", needs=("bad",)), layer("last", after=("bad", "next"))]
    assert run(layers, Interruptions(), tmp_path, said.append) == 1
    assert "last ran" in said


def test_what_needs_a_failed_layer_is_left_out_and_the_rest_runs(tmp_path: Path) -> None:
    said: list[str] = []
    layers = [layer("bad", "echo why; exit 3"), layer("next", needs=("bad",)), layer("last", needs=("next",))]
    assert run([*layers, layer("other")], Interruptions(), tmp_path, said.append) == 1
    assert "other ran" in said
    assert "why" in said
    assert "next ran" not in said
    assert [line for line in said if "FAILED (3)" in line]
    assert said[-2:] == [f"not run, for what it needs failed: {name}" for name in ("next", "last")]


def test_what_layers_print_is_not_mixed(tmp_path: Path) -> None:
    said: list[str] = []
    script = "for i in 1 2 3; do echo {0}; sleep 0.05; done"
    assert run([layer(name, script.format(name)) for name in "ab"], Interruptions(), tmp_path, said.append) == 0
    assert "a\na\na" in said
    assert "b\nb\nb" in said


def test_the_table_has_the_time_of_processors_of_what_a_layer_started(tmp_path: Path) -> None:
    said: list[str] = []
    work = f"{sys.executable} -S -c 'import time\nwhile time.process_time() < 0.3: pass'"
    run([layer("works", work), layer("waits", "sleep 0.3")], Interruptions(), tmp_path, said.append)
    rows = {line.split()[3]: float(line.split()[1]) for line in said if "%" in line}
    assert rows["works:"] >= 0.3
    assert rows["waits:"] < 0.2


def test_what_was_not_proved_ends_the_run_as_a_table_with_the_command_that_would(tmp_path: Path) -> None:
    said: list[str] = []
    left = [{"tests": 2, "reason": "takes long", "proved_by": "make whole"}]
    left += [{"tests": 11, "reason": "redis: there is none", "proved_by": "make whole"}]
    noted = f"""echo '{json.dumps({"cpu_s": 0.1, "not_proved": left})}' > {tmp_path / "lacks.json"}"""
    layers = [layer("lacks", noted), layer("has all", "true")]
    assert run(layers, Interruptions(), tmp_path, said.append) == 0
    assert [line.split(maxsplit=4) for line in said[-3:-1]] == [
        ["11", "lacks", "make", "whole", "redis: there is none"],
        ["2", "lacks", "make", "whole", "takes long"],
    ]
    assert said[-1].split() == ["13", "in", "all"]


def test_a_run_that_proved_all_has_no_such_table(tmp_path: Path) -> None:
    said: list[str] = []
    assert run([layer("has all", "true")], Interruptions(), tmp_path, said.append) == 0
    assert not any("not proved" in line for line in said)


def test_an_ordinary_run_has_every_layer_of_pytest_and_sets_up_what_needs_no_rights() -> None:
    here, whole = GROUPS["here"], GROUPS["all"]
    assert {each.name for each in whole} - {each.name for each in here} == {
        # What the layers need that it leaves out.
        *("kubernetes-build", "containerd-build", "oldest-build", "images", "chromium", "slurm-install"),
    }
    flags = {each.name: {"--here", "--leave-out"} & set(each.command) for each in here}
    names = [name for name, found in flags.items() if "--leave-out" in found]
    assert sorted(names) == ["browser", "cluster", "kubernetes", "kubernetes-oldest", "lowest", "slurm", "tenants"]
    assert sorted(name for name, found in flags.items() if "--here" in found) == [
        *("contract", "integration", "judge", "sim"),
    ]
    assert {name for each in here for name in each.needs} <= flags.keys()
    made = MAKEFILE.read_text()
    assert [name for name in names if f" test-{name} " not in made] == [], "the table names `make test-NAME`"


def test_an_interruption_reaches_every_layer_and_waits_until_it_has_cleared_up(tmp_path: Path) -> None:
    script = f"trap 'sleep 0.3; echo cleared > {tmp_path}/cleared; exit' INT; touch {tmp_path}/up; sleep 60 & wait"
    program = (
        "import sys, pathlib; from layers import Interruptions, Layer, run\n"
        "(heard := Interruptions()).listen()\n"
        "sys.exit(run([Layer('slow', ('sh', '-c', sys.argv[1]))], heard, pathlib.Path(sys.argv[2])))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "layers")}
    process = subprocess.Popen([sys.executable, "-c", program, script, tmp_path / "said"], env=environment)
    deadline = time.monotonic() + 60.0
    while not (tmp_path / "up").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60.0) == 130
    assert (tmp_path / "cleared").exists()


def test_the_layers_that_were_named_are_chosen_once_each() -> None:
    assert [each.name for each in chosen(["sim", "contract", "sim"])] == ["sim", "contract"]
    assert chosen(["unit"]) == UNIT
    assert set(chosen(["all"])) == set(LAYERS.values())
    with pytest.raises(ValueError, match="no layer units; there are: check, unit, here, all"):
        chosen(["units"])


def test_every_test_folder_is_in_a_layer() -> None:
    tests = Path(__file__).parents[2]
    folders = [each for each in tests.iterdir() if each.name != "unit"] + list((tests / "unit").iterdir())
    there = {str(each.relative_to(tests.parent)) for each in folders if list(each.rglob("test_*.py"))}
    run = [word for layer in GROUPS["all"] for word in layer.command if word.startswith("tests/")]
    assert there - set(run) == set(), "their tests never run"
    assert [each for each in run if each.startswith("tests/unit/") and run.count(each) > 1] == []


def test_a_layer_comes_after_those_that_exist() -> None:
    assert {name for each in LAYERS.values() for name in each.after} <= LAYERS.keys()
