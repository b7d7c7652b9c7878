"""The command around a small fleet of arithmetic; that it is right about the simulated one is tested there."""

import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from pastrun import JOB, past_run
from smallfleet import small_live

from holdfast.api.decoding import decode_json
from holdfast.api.fleet import FleetReport, Rate
from holdfast.api.judgement import Brief, Judgement
from holdfast.cli.commands import simulate
from holdfast.cli.main import answer
from holdfast.cli.simulation import livedrun
from holdfast.cli.simulation.livedrun import Done, Live, Task
from holdfast.cli.statedirectory import RunningJob, StateDirectory
from holdfast.simulator.outcome import Outcome
from holdfast.simulator.scenario import Scenario
from holdfast.watchdog.store.sqlite import SqliteStore

JOB_FILE = """
apiVersion: holdfast.dev/v1alpha1
kind: TrainingJob
metadata: {name: llm}
spec:
  entrypoint: [train.py]
  nodes: {min: 64, max: 128, spares: 2}
  processesPerNode: 8
  parallelism: {tensor: 8, pipeline: 4}
  checkpoint: {interval: 20m}
"""
SCENARIO = """
job: job.yaml
faults: [llama3, mine.yaml, {name: tripped cable, symptom: NodeLost, rate: 0.5}]
fleet: {nodes: 256, spares: 4, gpu_hour: 2.5}
days: 20
seeds: 4
"""
BOMB = "".join(f"\n{name}: &{name} [{', '.join(10 * [f'*{of}'])}]" for of, name in pairwise("abcdefgh"))
MINE = "kinds: [{name: SSD, symptom: NodeNotReady, rate: 0.25}]"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> list[Scenario]:
    """What is lived through, in the order that it was."""
    lived: list[Scenario] = []

    def live(scenario: Scenario, seed: int) -> Outcome:
        lived.append(scenario)
        return small_live(scenario, seed)

    monkeypatch.setattr(simulate, "_live", lambda: live)
    return lived


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "job.yaml").write_text(JOB_FILE)
    (tmp_path / "often.yaml").write_text(JOB_FILE.replace("20m", "5m"))
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    (tmp_path / "mine.yaml").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert answer(["simulate", "--workers", "1", *words]) == code, capsys.readouterr().err
    return capsys.readouterr().out


def test_a_job_of_another_size_has_whole_replica_groups(
    here: Path, capsys: pytest.CaptureFixture[str], small: list[Scenario]
) -> None:
    split = JOB_FILE.replace("{tensor: 8, pipeline: 4}", "{tensor: 8, pipeline: 4, replicaGroupNodes: 8}")
    (here / "groups.yaml").write_text(split.replace("{min: 64, max: 128, spares: 2}", "{min: 16, max: 64}"))
    told(capsys, "groups.yaml", "--nodes", "104", "--days", "1", "--seeds", "1")
    policy = small[0].policy
    assert (policy.replica_nodes, policy.nodes_min, policy.nodes_max) == (8, 32, 104)


def test_a_job_of_another_size_has_whole_replicas_of_all_that_splits_a_model(
    here: Path, capsys: pytest.CaptureFixture[str], small: list[Scenario]
) -> None:
    split = JOB_FILE.replace("{tensor: 8, pipeline: 4}", "{tensor: 8, context: 2, pipeline: 3}")
    (here / "split.yaml").write_text(split.replace("{min: 64, max: 128, spares: 2}", "{min: 6, max: 36}"))
    told(capsys, "split.yaml", "--nodes", "90", "--days", "1", "--seeds", "1")
    assert (small[0].policy.nodes_min, small[0].policy.nodes_max) == (18, 90)


def test_a_job_is_lived_through_under_its_own_policy(
    here: Path, capsys: pytest.CaptureFixture[str], small: list[Scenario]
) -> None:
    words = ["job.yaml", "--preset", "llama3", "--nodes", "2048", "--days", "54", "--seeds", "3"]
    text = told(capsys, *words)
    assert text.startswith("job: 2048 nodes (16,384 GPUs) and 2 spares, 54 days, 3 runs; means of one run, 95%")
    assert re.search(r"^ETTR +\d\d\.\d\d%  \(\d\d\.\d\d% to \d\d\.\d\d%\)$", text, re.MULTILINE)
    assert "faulty GPU" in text
    assert "lost money" not in text
    assert (small[0].policy.nodes_min, small[0].policy.nodes_max) == (1024, 2048)
    assert small[0].policy.interval is not None
    assert small[0].policy.interval.seconds == 1200.0
    assert sum(each.rate for each in small[0].faults) == pytest.approx(3.7887, abs=1e-3)
    found = json.loads(told(capsys, *words, "-o", "json", "--price", "2"))
    assert found["figures"]["faults"]["mean"] == pytest.approx(419, rel=0.1)
    assert found["figures"]["lost_money"]["mean"] == pytest.approx(2 * found["figures"]["lost_gpu_hours"]["mean"])
    assert found["seeds"] == [1, 2, 3]


def test_what_is_set_by_name_of_a_jobs_nodes_counts_beside_its_size(
    here: Path, capsys: pytest.CaptureFixture[str], small: list[Scenario]
) -> None:
    told(capsys, "--nodes", "64", "--set", "nodes.min=60", "--days", "1e0", "--seeds", "1")
    assert (small[-1].policy.nodes_min, small[-1].policy.nodes_max, small[-1].days) == (60, 64, 1.0)
    told(capsys, "job.yaml", "--sweep", "nodes.min=96,112", "--seeds", "1", "--nodes", "128")
    assert [each.policy.nodes_min for each in small[-2:]] == [96, 112]


def test_without_a_file_it_is_holdfasts_defaults(
    capsys: pytest.CaptureFixture[str], small: list[Scenario]
) -> None:
    found = json.loads(told(capsys, "--nodes", "64", "--seeds", "2", "--first-seed", "7", "-o", "json"))
    assert (found["says"], found["gpus"], found["seeds"]) == ("defaults", 512, [7, 8])
    assert small[0].policy.interval is not None
    assert small[0].policy.interval.seconds is None
    assert small[0].faults[0].name == "faulty GPU"


def test_a_scenario_says_all_of_it_and_options_replace_that(
    here: Path, capsys: pytest.CaptureFixture[str], small: list[Scenario]
) -> None:
    found = json.loads(told(capsys, "scenario.yaml", "-o", "json"))
    assert (found["nodes"], found["spares"], found["days"], len(found["seeds"])) == (256, 4, 20.0, 4)
    assert found["figures"]["lost_money"]["mean"] > 0
    assert [each.name for each in small[0].faults][-2:] == ["SSD (2)", "tripped cable"]
    told(
        capsys,
        "scenario.yaml",
        "--set",
        "times.load_s=99",
        "--set",
        "faultPolicy.heartbeat.lost=9s",
        "--days",
        "1",
    )
    assert (small[-1].times.load_s, small[-1].policy.lost_after_s, small[-1].days) == (99.0, 9.0, 1.0)


def test_what_a_fleet_reports_is_a_table(
    here: Path, capsys: pytest.CaptureFixture[str], small: list[Scenario]
) -> None:
    report = FleetReport(at=1.0, tables={"kind": (Rate("MemberLost", 3, 1000.0, 3.0, 0.6, 8.8),)})
    (here / "fleet.json").write_bytes(msgspec.json.encode(report))
    told(capsys, "job.yaml", "--preset", "fleet.json", "--preset", "spot", "--seeds", "1")
    lost, spot = small[0].faults
    assert (lost.name, lost.rate, spot.name) == ("MemberLost", pytest.approx(3.0 * 24 * 8), "spot interruption")


def test_the_presets_are_listed_with_their_sources(capsys: pytest.CaptureFixture[str]) -> None:
    text = told(capsys, "--presets")
    assert re.search(r"^llama3 +3\.79 +18 +Llama 3 405B .* https://arxiv.org/abs/2407.21783$", text, re.MULTILINE)


def test_two_policies_live_through_the_same_faults(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--compare", "job.yaml", "often.yaml", "--preset", "llama3", "--days", "30", "--price", "2"]
    text = told(capsys, *words, "--seeds", "5", "--plot", "both.svg")
    first, table = text.split("\n\n")
    assert re.fullmatch(
        r"often is better by lost GPU-hours over 5 seeds: in 30 days, [\d.]+ minutes lost less, [\d,.]+"
        r" GPU-hours lost less, [\d,.]+ USD lost less\.",
        first,
    )
    assert table.splitlines()[0].split("  ")[0] == ""
    assert "evictions, wrong" in table
    assert len(ElementTree.parse(here / "both.svg").findall(".//{*}rect")) > 4
    found = json.loads(told(capsys, *words, "--seeds", "2", "-o", "json"))
    assert [each["says"] for each in found["verdicts"]] == ["job", "often"]
    assert "nothing but noise over 3 seeds" in told(
        capsys, "--compare", "job.yaml", str(here / "job.yaml"), "--seeds", "3"
    )
    assert "They are of two sizes" not in text
    (here / "large.yaml").write_text(JOB_FILE.replace("min: 64, max: 128", "min: 128, max: 256"))
    sizes = told(capsys, "--compare", "job.yaml", "large.yaml", "--seeds", "2").split("\n\n")[1]
    assert sizes.startswith("They are of two sizes, 1,024 and 2,048 GPUs: shares compare (--by goodput)")
    assert "One seed says nothing" in told(capsys, *words, "--seeds", "1")


def test_a_sweep_has_the_best_first(here: Path, capsys: pytest.CaptureFixture[str], small: list[Scenario]) -> None:
    words = ["job.yaml", "--sweep", "spares=0..64..32", "interval=auto,5m", "--seeds", "3"]
    rows = told(capsys, *words).splitlines()
    assert len(rows) == 1 + 6
    assert rows[1].startswith("spares=0 interval=auto  ")
    assert rows[1].split()[2] == "best"
    assert "spares=64 interval=5m" in rows[-1]
    assert {each.policy.spares for each in small} == {0, 32, 64}
    found = json.loads(told(capsys, *words, "--by", "ettr", "-o", "json", "--plot", "sweep.png"))
    assert found[0]["point"] == {"spares": "32", "interval": "auto"}
    assert [each["ties"] for each in found] == [True, True, False, False, False, False]
    assert (here / "sweep.png").read_bytes().startswith(b"\x89PNG")


WRONG: dict[str, Sequence[str]] = {
    "gone.yaml": ["gone.yaml"],
    "--sweep: 'fish=1..'": ["--sweep", "fish=1.."],
    "setting: 'fish'": ["--sweep", "fish=1,2"],
    "setting: 'times'": ["--set", "times=3"],
    "times": ["--set", "times.fish=3"],
    "times.load_s": ["--set", "times.load_s=-3"],
    "--set: 'days'": ["--set", "days"],
    "days: 0": ["--days", "0"],
    "days: inf": ["--days", ".inf"],
    "days: 'week'": ["--days", "week"],
    "days: True": ["--days", "true"],
    "step_s": ["--set", "step_s=0"],
    "tests_find": ["--set", "tests_find=2"],
    "script_saves: -1": ["--set", "script_saves=-1"],
    "script_saves: 1.5": ["--set", "script_saves=1.5"],
    "fleet.nodes": ["--nodes", "0"],
    "fleet.nodes ": ["--nodes", "1e9"],
    "fleet.spares": ["--spares", "-1"],
    "fleet.gpu_hour": ["--price", "0"],
    "fleet.rack": ["--set", "fleet.rack=0"],
    "spec.checkpoint.interval": ["--set", "checkpoint.interval=5"],
    "llama33": ["--preset", "llama33"],
    "give one file": ["job.yaml", "often.yaml"],
    "spec.parallelism: 3": ["--set", "parallelism=3", "--nodes", "4"],
    "spec.nodes.min": ["--set", "nodes.min.x=3"],
    "file: /dev/zero": ["/dev/zero"],
    "--by": ["--by", "luck", "--compare", "job.yaml", "often.yaml"],
    "--plot": ["--plot", "x.pdf"],
    "--plot: 'gone/x.svg'": ["--plot", "gone/x.svg"],
    "--by: 'rounds'": ["--by", "rounds"],
    "lost_money needs a price": ["--by", "lost_money"],
    "--cluster": ["--cluster", "slurm://x"],
    "leave it out beside --compare": ["--compare", "job.yaml", "often.yaml", "--sweep", "spares=1"],
    "leave it out beside --policy": ["--policy", "job.yaml", "--days", "3"],
    "leave it out beside --journal": ["--journal", ".", "--preset", "llama3"],
}


@pytest.mark.parametrize("says", WRONG)
def test_what_is_odd_is_refused_by_the_field(
    says: str, here: Path, capsys: pytest.CaptureFixture[str], small: list[Scenario]
) -> None:
    words = [] if "--cluster" in WRONG[says] else ["--workers", "1"]
    assert answer(["simulate", *words, *WRONG[says]]) == 2
    assert says.strip() in capsys.readouterr().err
    assert not small


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("job: gone.yaml", "gone.yaml"),
        ("job: 3", "job: 3"),
        ("fish: 3", "fish: 3"),
        ("faults: llama3", "faults: 'llama3'"),
        ("faults: []", "faults: []"),
        ("faults: [3]", "faults[0]: 3"),
        ("faults: [{name: a}]", "faults[0]"),
        ("seeds: 0", "seeds: 0"),
        ("seeds: many", "seeds: 'many'"),
        ("fleet: 3", "fleet"),
        ("fleet: {rack: 4, tower: 2}", "tower"),
        ("times: {load_s: soon}", "times.load_s: 'soon' is not accepted; give a number"),
        ("times: {provision: {median_s: 3, sigma: 1000}}", "times.provision.sigma: 1000.0"),
        ("times: {human: {median_s: 3, sigma: .nan}}", "times.human.sigma: nan"),
        ("fleet: {nodes: 4}\njob: {spec: null}", "spec: None"),
        ("fleet: {nodes: 4}\njob: {spec: {entrypoint: [a], nodes: 3}}", "spec.nodes: 3"),
        ("faults: &a [*a]", "anchors"),
        ("a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]" + BOMB, "anchors"),
        ("job: {spec: {entrypoint: [a], nodes: {min: 9, max: 3}}}", "spec.nodes"),
        ("job: {spec: {entrypoint: [a], suspend: true}}", "spec.suspend"),
        ("faults: [two.yaml]", "faults[0]"),
        ("[1, 2]", "FILE"),
        ("days: 1\n---\ndays: 2", "FILE"),
        ("days: [", "line"),
    ],
)
def test_an_odd_scenario_is_refused_by_the_field(
    text: str, says: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "odd.yaml").write_text(text)
    (here / "two.yaml").write_text(f"{MINE}\n---\n{MINE}")
    assert answer(["simulate", "odd.yaml", "--workers", "1"]) == 2
    assert says in capsys.readouterr().err


def test_a_ctrl_c_keeps_what_is_done(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def until_the_third(live: Live, tasks: Sequence[Task]) -> Iterator[Done]:
        for task in tasks[:3]:
            yield Done(task.policy, live(task.scenario, task.seed))
        raise KeyboardInterrupt

    monkeypatch.setattr(livedrun, "Cores", lambda workers: until_the_third)
    assert answer(["simulate", "job.yaml", "-o", "json"]) == 130
    said = capsys.readouterr()
    assert json.loads(said.out)["seeds"] == [1, 2, 3]
    assert "broken off: this is of the 3 runs that were done" in said.err
    assert answer(["simulate", "job.yaml", "--sweep", "spares=0..3", "-o", "json"]) == 130
    assert len(json.loads(capsys.readouterr().out)) == 3
    assert answer(["simulate", "--compare", "job.yaml", "often.yaml", "-o", "json"]) == 130
    assert json.loads(capsys.readouterr().out)["comparison"]["seeds"] == [1]


# A run that happened.


@pytest.fixture
def run(here: Path) -> Path:
    """The state directory of the run that was."""
    root = here / "run"
    root.mkdir()
    directory = StateDirectory(root)
    directory.write_running_job(RunningJob(JOB, "/job.yaml"))
    store = SqliteStore(directory.store_file)
    fence = store.claim()
    for line in past_run().lines:
        store.append(JOB, [line.event], at=line.at, after=line.offset - 1, fence=fence)
    store.close()
    return root


def test_a_run_is_lived_through_again_under_another_policy(
    run: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = JOB_FILE.replace("{min: 64, max: 128, spares: 2}", "{min: 4, max: 4, spares: 1}").replace(
        "20m", "20m"
    )
    (here / "new.yaml").write_text(policy)
    text = told(capsys, "--journal", str(run), "--policy", "new.yaml", "--seeds", "3", code=1)
    assert text.startswith("team/run: 3 faults in 0.0626 days, lived through again")
    assert re.search(r"^lost minutes +5\.58 +12 +\(12 to 12\) +6\.42$", text, re.MULTILINE)
    assert "as it was is better by lost GPU-hours over 3 seeds" in text
    assert re.search(
        r"^The new policy is worse: the policies are [\d.]+ of lost GPU-hours apart, and the simulator is",
        text,
        re.MULTILINE,
    )
    brief = ("--journal", str(run), "--policy", "new.yaml", "--seeds", "3", "--brief")
    told(capsys, *brief, "brief.json", code=1)
    assert decode_json((here / "brief.json").read_bytes(), Brief).says is Judgement.WORSE
    told(capsys, *brief, "nowhere/brief.json", code=3)
    told(capsys, "--journal", str(run), "--brief", "brief.json", code=2)
    told(capsys, "job.yaml", "--brief", "brief.json", code=2)
    found = json.loads(told(capsys, "--journal", str(run), "--seeds", "2", "-o", "json"))
    assert found["comparison"] is None
    assert found["happenings"] == 3


def test_a_brief_of_a_run_that_has_not_trained_says_so(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = here / "young"
    root.mkdir()
    directory = StateDirectory(root)
    directory.write_running_job(RunningJob(JOB, "/job.yaml"))
    store = SqliteStore(directory.store_file)
    first = past_run().lines[0]
    store.append(JOB, [first.event], at=first.at, after=0, fence=store.claim())
    store.close()
    words = ("--journal", str(root), "--policy", "job.yaml", "--brief", "brief.json")
    assert answer(["simulate", *words]) == 2
    assert "has trained no step" in capsys.readouterr().err
    found = decode_json((here / "brief.json").read_bytes(), Brief)
    assert (found.says, found.why) == (Judgement.NOT_JUDGED, "the run has trained no step that was kept")


def test_the_job_that_is_meant_is_found_as_by_every_read(
    run: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / ".holdfast").mkdir()
    run.rename(here / ".holdfast" / "team-run")
    (here / "new.yaml").write_text(JOB_FILE.replace("{min: 64, max: 128, spares: 2}", "4"))
    assert answer(["simulate", "--policy", "new.yaml"]) == 2
    assert "spec.nodes" in capsys.readouterr().err
    (here / "new.yaml").write_text(JOB_FILE.replace("{min: 64, max: 128, spares: 2}", "{min: 4}"))
    assert json.loads(told(capsys, "-j", "run", "--policy", "new.yaml", "-o", "json", code=1))["says"] == "worse"


def test_a_directory_without_a_run_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["simulate", "--journal", str(here)]) == 3
    assert "is no state directory of a run" in capsys.readouterr().err
