import importlib
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec
import pytest
import yaml
from fakewatchdog import FakeWatchdog, fake_watchdog, lay_out
from wireobjects import JOB, a_rank, a_status, an_incident

from holdfast.api.intervention import (
    Forecast,
    InterventionAction,
    InterventionOutcome,
    InterventionRequest,
    InterventionState,
)
from holdfast.cli.main import COMMANDS, LazyGroup, answer
from holdfast.cli.target import Program
from holdfast.watchdog.store.sqlite import SqliteStore


@pytest.fixture
def watchdog(tmp_path: Path) -> Iterator[FakeWatchdog]:
    with fake_watchdog(tmp_path) as fake:
        fake.answers["GET status"] = (200, a_status())
        fake.answers["GET ranks"] = (200, [a_rank(0), a_rank(1)])
        fake.answers["GET incidents"] = (200, [an_incident(id="incident-2"), an_incident()])
        yield fake


@pytest.fixture
def here(tmp_path: Path) -> list[str]:
    return ["--state-dir", str(tmp_path)]


def test_the_names_of_the_commands_are_the_promised_ones() -> None:
    assert list(COMMANDS) == [
        *("run", "slurm", "ssh", "demo", "launch", "status", "ranks", "nodes", "logs", "incidents", "why"),
        *("fleet", "cost"),
        *("postmortem", "rounds"),
        *("stacks", "flight", "profile", "runbook", "journal", "replay"),
        *(
            "console",
            "evict",
            "return",
            "self-test",
            "pause",
            "resume",
            "restart",
            "checkpoint",
            "compare",
            "bisect",
            "rollback",
            "rewind",
            "resize",
            "skip-batches",
        ),
        *("plan", "simulate"),
        *("doctor", "probe", "audit", "watchdog", "operator", "agent", "completion", "version"),
    ]


def test_kubectl_has_the_commands_that_run_nothing_on_this_machine() -> None:
    context = click.Context(LazyGroup(), obj=Program.KUBECTL)
    left_out = set(COMMANDS) - set(LazyGroup().list_commands(context))
    here = {
        "run",
        "slurm",
        "ssh",
        "demo",
        "launch",
        "plan",
        "compare",
        "bisect",
        "probe",
        "audit",
        "watchdog",
        "operator",
        "agent",
    }
    assert left_out == here


PLACE = [
    *("-n", "--namespace", "--context", "--kubeconfig", "--holdfast-namespace", "--holdfast-service"),
    *("--state-dir", "--watchdog", "--token-file", "--ca-file"),
]
READ = [*PLACE, "-o", "--output"]
ASKED = ["--reason", "--dry-run", "--timeout", "--no-wait"]
OPTIONS = {
    "run": [
        *("--nodes", "--faults", "--state-dir", "--fresh", "--continue", "--save-within", "--skip-batches"),
        *("--listen", "--observe", "--console", "--no-console", "--replace", "--no-replace", "--replace-delay"),
    ],
    "slurm": [
        *("--state-dir", "--sbatch", "--script", "--here", "--save-before", "--drain-with"),
        *("--simulate-gpus", "--kernel-log"),
    ],
    "plan": [
        *("--model", "--gpu", "--gpus", "--price", "--sequence", "--batch", "--tokens"),
        *("--fleet", "--layout", "--top", "--explain", "--write", "-o", "--output"),
    ],
    "simulate": [
        *("--preset", "--presets", "--nodes", "--spares", "--days", "--price", "--set", "--seeds", "--first-seed"),
        *("--compare", "--sweep", "--by", "--journal", "--policy", "--brief", "--plot", "--workers", "--cluster"),
        *("-o", "--output", "-j", "--job", *PLACE),
    ],
    "ssh": ["--hosts", "--state-dir", "--fresh", "--address", "--python", "--ssh", "--simulate-gpus"],
    "demo": ["--text", "--steps", "--state-dir", "--plain", "--console", "--no-console"],
    "status": ["-A", "--all-namespaces", *READ],
    "ranks": READ,
    "nodes": READ,
    "incidents": READ,
    "why": ["-j", "--job", *READ],
    "postmortem": ["--since", "--format", "--output", "--distill", "-j", "--job", *PLACE],
    "rounds": READ,
    "rollback": ["--yes", "--to", "-j", "--job", *PLACE],
    "runbook": ["--since", "--checks", "-j", "--job", *READ],
    "journal": ["--after", *READ],
    "replay": ["--events", *READ],
    "console": [*PLACE, "--port"],
    "evict": [*ASKED, "-j", "--job", *PLACE],
    "return": [*ASKED, "-j", "--job", *PLACE],
    "self-test": ["--level", *ASKED, "-j", "--job", *PLACE],
    "pause": [*ASKED, *PLACE],
    "resume": [*ASKED, *PLACE],
    "restart": ["--fresh", *ASKED, *PLACE],
    "checkpoint": [],
    "compare": ["--tolerance", "-o", "--output"],
    "bisect": [
        *("--a-directory", "--b-directory", "--a-command", "--b-command", "--ranks", "--steps", "--timeout"),
        *("--together", "--scratch", "-o", "--output"),
    ],
    "rewind": ["--skip-batches", "--learning-rate-scale", *ASKED, "-j", "--job", *PLACE],
    "resize": [*ASKED, "-j", "--job", *PLACE],
    "skip-batches": [*ASKED, "-j", "--job", *PLACE],
    "doctor": READ,
    "probe": [
        *("--level", "--device", "--tensor", "--golden", "--record", "--repeat", "--seed", "--inject"),
        *("-o", "--output"),
    ],
    "audit": ["--probes", "--entry", "-o", "--output"],
    "completion": [],
    "version": [],
}


@pytest.mark.parametrize("command", OPTIONS)
def test_the_options_of_every_command_are_the_promised_ones(command: str) -> None:
    found = LazyGroup().get_command(click.Context(LazyGroup()), command)
    assert found is not None
    given = [
        name
        for each in found.params
        if isinstance(each, click.Option)
        for name in (*each.opts, *each.secondary_opts)
    ]
    assert given == OPTIONS[command]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        *((name, ["job"]) for name in ("status", "ranks", "nodes", "incidents", "journal", "replay")),
        *((name, ["job"]) for name in ("pause", "resume", "restart")),
        *((name, ["node"]) for name in ("evict", "return", "self-test")),
        *(("why", ["incident"]), ("rewind", ["step"]), ("resize", ["nodes"]), ("skip-batches", ["batches"])),
        ("runbook", ["symptom"]),
    ],
)
def test_the_words_of_every_command_are_the_promised_ones(command: str, words: list[str]) -> None:
    found = LazyGroup().get_command(click.Context(LazyGroup()), command)
    assert found is not None
    assert [each.name for each in found.params if isinstance(each, click.Argument)] == words


def test_the_programs_that_kubectl_calls_are_installed() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    scripts = project["scripts"]
    assert set(scripts) == {"holdfast", "kubectl-holdfast", "kubectl_complete-holdfast"}
    for target in scripts.values():
        module, _, name = target.partition(":")
        assert callable(getattr(importlib.import_module(module), name))


@pytest.mark.usefixtures("watchdog")
def test_status_is_a_table_json_or_yaml(here: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["status", *here]) == 0
    assert "phase          Running" in capsys.readouterr().out
    assert answer(["status", "-o", "json", *here]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 120
    assert answer(["status", "-o", "yaml", *here]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["phase"] == "Running"


@pytest.mark.usefixtures("watchdog")
def test_incidents_come_oldest_first_and_why_tells_the_newest(
    here: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer(["incidents", *here]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["incident-1", "incident-2"]
    assert answer(["why", *here]) == 0
    assert capsys.readouterr().out.startswith("incident-2: ")
    assert answer(["why", "incident-1", *here]) == 0
    assert capsys.readouterr().out.startswith("incident-1: ")


@pytest.mark.usefixtures("watchdog")
def test_an_unknown_incident_names_the_known_ones(here: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["why", "incident-9", *here]) == 2
    assert capsys.readouterr().err == (
        "holdfast: incident: 'incident-9' is not accepted; the newest are incident-1, incident-2\n"
    )


@pytest.mark.usefixtures("watchdog")
def test_ranks_are_listed(here: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["ranks", *here]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_an_intervention_is_asked_for_with_its_reason(
    watchdog: FakeWatchdog, here: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    watchdog.answers["POST interventions"] = (200, InterventionOutcome("i", InterventionState.DONE, "node-2 left"))
    assert answer(["evict", "node-2", "--reason", "smells", *here]) == 0
    assert capsys.readouterr().out == "Done: node-2 left\n"
    sent = msgspec.json.decode(watchdog.asked[0], type=InterventionRequest)
    assert (sent.job, sent.action, sent.node, sent.reason) == (JOB, InterventionAction.EVICT, "node-2", "smells")


def test_a_refused_intervention_is_a_failure(
    watchdog: FakeWatchdog, here: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    watchdog.answers["POST interventions"] = (
        200,
        InterventionOutcome("i", InterventionState.REFUSED, "not paused"),
    )
    assert answer(["resume", *here]) == 1
    assert capsys.readouterr().err == "Refused: not paused\n"


def test_a_dry_run_shows_the_object_and_asks_for_nothing(
    watchdog: FakeWatchdog, here: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer(["return", "node-2", "--dry-run", *here]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown["spec"]["action"] == "Return"
    assert shown["metadata"]["namespace"] == "research"
    assert watchdog.asked == []


def test_a_dry_run_says_what_would_happen_before_it_shows_the_object(
    watchdog: FakeWatchdog, here: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    would = Forecast(InterventionState.DONE, "node node-2 evicted", ("round 4: 1 members", "it restores step 40"))
    watchdog.answers["GET forecast"] = (200, would)
    assert answer(["evict", "node-2", "--dry-run", *here]) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[:4] == [
        "# It would be Done: node node-2 evicted",
        "# What would happen now:",
        "# - round 4: 1 members",
        "# - it restores step 40",
    ]
    assert yaml.safe_load(said)["spec"]["node"] == "node-2"
    watchdog.answers["GET forecast"] = (200, Forecast(InterventionState.REFUSED, "the job is not suspended"))
    assert answer(["resume", "--dry-run", *here]) == 1
    assert capsys.readouterr().out.startswith("# It would be Refused: the job is not suspended\napiVersion")
    assert watchdog.asked == []


def test_a_dry_run_without_a_watchdog_says_that_only_the_shape_was_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lay_out(tmp_path, port=1)
    assert answer(["pause", "--dry-run", "--state-dir", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("# Only the shape was checked; what would happen is unknown: the watchdog does not ")
    assert yaml.safe_load(said)["spec"]["action"] == "Pause"


def test_a_watchdog_that_is_away_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lay_out(tmp_path, port=1)
    assert answer(["status", "--state-dir", str(tmp_path)]) == 3
    assert capsys.readouterr().err.startswith("holdfast: the watchdog does not answer at 127.0.0.1:1 (")


def test_the_incidents_of_a_run_that_is_over_are_read_from_its_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = lay_out(tmp_path, port=1)
    store = SqliteStore(directory.store_file)
    store.file(an_incident(), fence=store.claim())
    store.close()
    assert answer(["why", "--state-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("incident-1: ")


@pytest.mark.usefixtures("watchdog")
def test_a_wrong_token_is_one_sentence(
    tmp_path: Path, here: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "token").write_text("other")
    assert answer(["status", *here]) == 3
    assert "refused the token of this state directory: this needs a valid token" in capsys.readouterr().err


def test_the_run_used_last_is_found_without_being_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    assert answer(["status"]) == 3
    assert f"no run was found under {tmp_path}/.holdfast" in capsys.readouterr().err
    with fake_watchdog(tmp_path / ".holdfast" / "research-gpt") as fake:
        fake.answers["GET status"] = (200, a_status())
        assert answer(["status"]) == 0


@pytest.mark.parametrize(
    "arguments", [["no-such"], ["status", "-o", "xml"], ["evict"], ["run"], ["run", "x.yaml", "--nodes", "0"]]
)
def test_wrong_usage_is_two(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(arguments) == 2
    assert "Error: " in capsys.readouterr().err


def test_a_bad_job_file_is_two_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert answer(["run", "none.yaml"]) == 2
    assert "the file cannot be read: No such file or directory" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_error_nobody_foresaw_is_one_sentence_and_a_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("holdfast.cli.commands.job.open_site", fail)
    assert answer(["status"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("holdfast: unexpected RuntimeError: boom; the traceback is in ")
    log = Path(said.strip().rpartition(" ")[2])
    assert "RuntimeError: boom" in log.read_text()
    log.unlink()


def test_a_status_imports_nothing_heavy() -> None:
    code = (
        "import sys; from holdfast.cli.main import answer; answer(['status', '--state-dir', '/nowhere']);"
        "heavy = ('torch', 'aiohttp', 'rich', 'pydantic', 'yaml', 'kubernetes', 'urllib3');"
        "print([m for m in heavy if m in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert ended.stdout.strip() == "[]"


@pytest.mark.parametrize("part", ["watchdog", "operator", "agent"])
def test_every_service_is_a_command_with_its_own_arguments(
    part: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit) as ended:
        answer([part, "--help"])
    assert ended.value.code == 0
    assert "--listen" in capfd.readouterr().out
    monkeypatch.setitem(sys.modules, f"holdfast.{part}.program", None)
    assert answer([part, "--help"]) == 3
    assert f"install it with pip install 'holdfast[{part}]'" in capfd.readouterr().err
