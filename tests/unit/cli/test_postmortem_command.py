"""`holdfast postmortem`, `rounds` and `rollback`: what is written, where it is read from, and what is refused."""

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
import yaml
from fakekubernetes import INTERVENTIONS, JOBS, PROXY, FakeKubernetes, fake_kubernetes, refusal
from fakewatchdog import TOKEN, FakeWatchdog, fake_watchdog, lay_out
from golden import assert_golden
from wireobjects import JOB, a_status, an_incident

from holdfast.api.event import Journaled, MemberEntered, MemberJoined, RoundProgressed, RunRecorded
from holdfast.api.ledger import GPU_HOUR_US, Entry, LedgerReport, Row
from holdfast.api.runmanifest import FORMAT, Code, RunManifest
from holdfast.cli.figures import Figures
from holdfast.cli.main import answer
from holdfast.cli.postmortem import html, markdown
from holdfast.cli.postmortem.case import Case
from holdfast.cli.postmortem.composing import postmortem, report
from holdfast.cli.rounds.view import rounds_text
from holdfast.cli.statedirectory import ListeningAt, StateDirectory
from holdfast.cli.target import Program
from holdfast.watchdog.server.jobs import JournalPage

INCIDENT = an_incident(id="inc-0001", known_at=100.004)
LEDGER = LedgerReport(
    JOB,
    1000.0,
    GPU_HOUR_US,
    4 * 10**9,
    (
        Entry(Row.DETECTING, "2026-01-31", 4000, 1, "inc-0001", "ProcessExit", "node-2"),
        Entry(Row.LOADING, "2026-01-31", GPU_HOUR_US - 4000, 4 * 10**9 - 1, "inc-0001", "ProcessExit", "node-2"),
    ),
    "EUR",
)


def a_manifest(commit: str = "a" * 40, image: str = "", **code: Any) -> RunManifest:
    versions = {"versions": {"image": image}} if image else {}
    return RunManifest(FORMAT, command=("python", "train.py"), code=Code(commit=commit, **code), settings=versions)


def journal_of(*manifests: RunManifest) -> tuple[Journaled, ...]:
    """A round for each, ten seconds apart from second 50 on, of two ranks that make a step a second."""
    events: list[tuple[float, Any]] = [
        (40.0, MemberJoined(f"node-{each}", f"node-{each}", "1", "h", 1, (1, 2), warm=True)) for each in (1, 2)
    ]
    for place, manifest in enumerate(manifests):
        number, began = place + 2, 50.0 + 50.0 * place
        events += [(began, MemberEntered(f"node-{each}", number, reentrant=True)) for each in (1, 2)]
        events.append((began, RunRecorded(number, str(number), manifest)))
        events += [(began + step, RoundProgressed(number, 50 * place + step)) for step in (1, 25, 49)]
    return tuple(Journaled(offset + 1, at, event) for offset, (at, event) in enumerate(events))


def a_case() -> Case:
    at = tuple(float(second) for second in range(20, 180))
    loss = tuple(3.0 - 0.01 * second for second in range(160))
    steady = (1000.0,) * 160
    figures = Figures(at, tuple(float(second) for second in range(160)), loss, steady, (1.0,) * 160, (0.4,) * 160)
    journal = journal_of(a_manifest(), a_manifest("b" * 40))
    return Case(JOB, 1002.5, (INCIDENT,), journal, LEDGER, figures)


def test_what_is_written() -> None:
    case = a_case()
    bare = Case(JOB, 1002.5, (INCIDENT,), unread=("The journal: it is away.",))
    texts = {
        "an incident, as Markdown": markdown.written(postmortem(case, INCIDENT)),
        "an incident of which the record alone is known": markdown.written(postmortem(bare, INCIDENT)),
        "a day": markdown.written(report(case, (INCIDENT,), 0.0)),
        "a day without an incident, as HTML": html.written(report(case, (), 0.0)),
        "rounds": rounds_text(case.rounds),
    }
    # What a picture is made of has tests of its own.
    pictured = re.compile(r"<svg.*?</svg>", re.DOTALL)
    assert_golden("postmortem", {case: pictured.sub("<svg>", text) for case, text in texts.items()})


@pytest.fixture
def watchdog(tmp_path: Path) -> Iterator[FakeWatchdog]:
    with fake_watchdog(tmp_path) as fake:
        fake.answers["GET status"] = (200, a_status())
        fake.answers["GET incidents"] = (200, [INCIDENT])
        fake.answers["GET ledger"] = (200, LEDGER)
        fake.answers["GET journal"] = (200, JournalPage(journal_of(a_manifest()), None))
        yield fake


@pytest.fixture
def here(tmp_path: Path) -> list[str]:
    return ["--state-dir", str(tmp_path)]


@pytest.fixture
def there(watchdog: FakeWatchdog, tmp_path: Path) -> list[str]:
    """The same watchdog by its address: of a state directory the journal is read from the store."""
    listening = StateDirectory(tmp_path).listening_at()
    assert listening is not None
    return ["--watchdog", f"127.0.0.1:{listening.port}", "--token-file", str(tmp_path / "token"), "--job", JOB]


COLUMNS = {"at": [100.0], "step": [1], "loss_median": [2.5], "tokens_s": [9.0], "step_s": [1.0], "mfu": [None]}


class TestTheDocument:
    def test_it_goes_to_stdout_or_to_a_file_in_the_form_of_its_name(
        self, watchdog: FakeWatchdog, here: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert answer(["postmortem", "last", *here]) == 0
        told = capsys.readouterr()
        assert told.out.startswith("# Postmortem of inc-0001: ProcessExit of node node-2 rank 1 in research/gpt\n")
        assert "nobody kept its figures over time" in told.err
        page = tmp_path / "page.html"
        assert answer(["postmortem", "inc-0001", *here, "--output", str(page)]) == 0
        assert page.read_text().startswith("<!doctype html>")
        assert answer(["postmortem", "--since", "1h", *here, "--format", "html"]) == 0
        assert capsys.readouterr().out.startswith("<!doctype html>")

    def test_figures_are_those_a_console_kept(
        self, watchdog: FakeWatchdog, here: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        StateDirectory(tmp_path).series_file.write_text(json.dumps({JOB: COLUMNS}))
        assert answer(["postmortem", "last", *here]) == 0
        assert capsys.readouterr().out.count("<svg") == 3

    def test_of_a_console_that_lives_they_are_asked(
        self, watchdog: FakeWatchdog, here: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        directory = StateDirectory(tmp_path)
        listening = directory.listening_at()
        assert listening is not None
        directory.console_file.write_bytes(msgspec.json.encode(ListeningAt("127.0.0.1", listening.port, 1)))
        watchdog.answers[f"GET /api/v1/jobs/{JOB}/series"] = (200, COLUMNS)
        assert answer(["postmortem", "last", *here]) == 0
        assert capsys.readouterr().out.count("<svg") == 3

    @pytest.mark.parametrize(
        ("words", "says"),
        [
            ([], "name an incident, or give --since, and not both"),
            (["last", "--since", "1h"], "name an incident, or give --since, and not both"),
            (["inc-0009"], "the newest are inc-0001"),
            (["--since", "1h", "--distill", "a.yaml"], "name the incident that the check is to find again"),
            (["--since", "soon"], "'soon' is not accepted"),
        ],
    )
    def test_what_is_wrong_is_said(
        self,
        watchdog: FakeWatchdog,
        here: list[str],
        capsys: pytest.CaptureFixture[str],
        words: list[str],
        says: str,
    ) -> None:
        assert answer(["postmortem", *words, *here]) == 2
        assert says in capsys.readouterr().err

    def test_what_is_no_file_is_written_to_and_stays_what_it_is(
        self, watchdog: FakeWatchdog, here: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        (tmp_path / "out").symlink_to(pipe)
        assert answer(["postmortem", "last", *here, "--distill", str(tmp_path / "out")]) == 0
        assert os.read(reader, 1 << 16).startswith(b"format: 1\n")
        os.close(reader)
        assert (pipe.is_fifo(), (tmp_path / "out").is_symlink()) == (True, True)
        capsys.readouterr()
        assert answer(["postmortem", "last", *here, "--output", "-"]) == 0
        assert capsys.readouterr().out.startswith("# Postmortem of inc-0001")
        assert not Path("-").exists()

    def test_what_cannot_be_read_is_said_in_it_and_a_file_that_cannot_be_written_leaves_nothing(
        self, watchdog: FakeWatchdog, here: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        watchdog.answers["GET ledger"] = (500, {"error": "no"})
        watchdog.answers["GET journal"] = (500, {"error": "no"})
        assert answer(["postmortem", "last", *here]) == 0
        told = capsys.readouterr().out
        assert "- The journal: " in told
        assert "- The ledger: " in told
        assert answer(["postmortem", "last", *here, "--output", str(tmp_path / "gone" / "a.md")]) == 3
        assert "cannot be written" in capsys.readouterr().err

    def test_a_distilled_check_is_run_by_the_runbook(
        self, watchdog: FakeWatchdog, here: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        folder = tmp_path / "checks"
        folder.mkdir()
        check = folder / "again.yaml"
        assert answer(["postmortem", "last", *here, "--distill", str(check)]) == 0
        told = capsys.readouterr()
        assert told.out == "", "the document is only asked for with --output"
        assert yaml.safe_load(check.read_text())["facts"] == [
            {"incident": {"kind": "ProcessExit", "cause": "signal 9 (SIGKILL)"}}
        ]
        for each in ("ranks", "nodes"):
            watchdog.answers[f"GET {each}"] = (200, [])
        for each in ("plan", "round"):
            watchdog.answers[f"GET {each}"] = (200, None)
        watchdog.answers["GET status"] = (200, a_status(now=200.0))
        assert answer(["runbook", "hung", *here, "--checks", str(folder), "-o", "json"]) == 1
        found = {each["id"]: each for each in json.loads(capsys.readouterr().out)["checks"]}
        again = found["again-processexit-signal-9-sigkill"]
        assert (again["verdict"], again["next"].split()[:3]) == ("suspect", ["holdfast", "why", "inc-0001"])
        assert "Learned: in inc-0001 it was node node-2 rank 1" in again["evidence"]
        check.write_text("format: 1\n")
        assert answer(["runbook", "hung", *here, "--checks", str(folder)]) == 2
        assert str(check) in capsys.readouterr().err


class TestRounds:
    def test_they_are_told_in_every_form(
        self, watchdog: FakeWatchdog, there: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        lines = journal_of(a_manifest(), a_manifest("b" * 40))
        watchdog.answers["GET journal"] = (200, JournalPage(lines, None))
        assert answer(["rounds", JOB, *there[:-2]]) == 0
        assert f"code           commit: {'a' * 12} -> {'b' * 12}" in capsys.readouterr().out
        assert answer(["rounds", JOB, *there[:-2], "-o", "json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert [each["round"] for each in told] == [2, 3]
        assert told[1]["changes"] == [{"about": "code", "name": "commit", "before": "a" * 12, "after": "b" * 12}]
        assert {each["turn"] for each in told[1]["effects"]} == {"unknown"}
        assert answer(["rounds", JOB, *there[:-2], "-o", "name"]) == 0
        assert capsys.readouterr().out == "round/2\nround/3\n"

    def test_of_a_journal_that_cannot_be_read_no_round_is_claimed_not_to_be(
        self, watchdog: FakeWatchdog, there: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        watchdog.answers["GET journal"] = (500, {"error": "line 6 is missing"})
        assert answer(["rounds", JOB, *there[:-2]]) == 3
        assert answer(["rollback", "2", "--to", "x", *there]) == 3
        said = capsys.readouterr()
        assert said.err.count("The journal: ") == 2
        assert said.out == ""


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", "-C", folder, *identity, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


class TestRollbackOnThisMachine:
    @pytest.fixture
    def told(self, watchdog: FakeWatchdog, tmp_path: Path) -> RunManifest:
        """A round that ran a commit with a change that was not committed."""
        tree = tmp_path / "tree"
        (tree / "src").mkdir(parents=True)
        script = tree / "src" / "train.py"
        script.write_text("print(1)\n")
        git(tree, "init", "-q")
        git(tree, "add", "-A")
        git(tree, "commit", "-qm", "one")
        commit = git(tree, "rev-parse", "HEAD")
        script.write_text("print(2)\n")
        digest = hashlib.sha256(script.read_bytes()).hexdigest()
        diff = git(tree, "diff", "HEAD") + "\n"
        script.write_text("print(3)\n")
        files = {"train.py": digest}
        manifest = a_manifest(commit, directory=str(tree / "src"), root=str(tree), diff=diff, files=files)
        watchdog.answers["GET journal"] = (200, JournalPage(journal_of(manifest), None))
        return manifest

    def test_the_code_is_laid_out_and_the_work_tree_left_alone(
        self, told: RunManifest, there: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        folder = tmp_path / "code"
        assert answer(["rollback", "2", "--to", str(folder), *there]) == 0
        said = capsys.readouterr()
        assert said.out == f"cd {folder}/src && python train.py\n"
        assert "some files" not in said.err
        assert (folder / "src" / "train.py").read_text() == "print(2)\n"
        assert (tmp_path / "tree" / "src" / "train.py").read_text() == "print(3)\n"
        assert answer(["rollback", "2", "--to", str(folder), *there]) == 2
        assert "it exists: name a new folder" in capsys.readouterr().err

    def test_words_of_a_command_command_no_terminal(
        self,
        told: RunManifest,
        watchdog: FakeWatchdog,
        there: list[str],
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        loud = msgspec.structs.replace(told, command=("python", "train.py", "\x1b]0;owned\x07"))
        watchdog.answers["GET journal"] = (200, JournalPage(journal_of(loud), None))
        assert answer(["rollback", "2", "--to", str(tmp_path / "code"), *there]) == 0
        assert capsys.readouterr().out.endswith("train.py '\\x1b]0;owned\\x07'\n")

    def test_what_cannot_be_laid_out_leaves_nothing(
        self,
        told: RunManifest,
        watchdog: FakeWatchdog,
        there: list[str],
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        broken = msgspec.structs.replace(told, code=msgspec.structs.replace(told.code, diff="no diff"))
        watchdog.answers["GET journal"] = (200, JournalPage(journal_of(broken), None))
        assert answer(["rollback", "2", "--to", str(tmp_path / "code"), *there]) == 3
        assert "the code of round 2 cannot be laid out" in capsys.readouterr().err
        assert not (tmp_path / "code").exists()

    def test_nothing_is_started_here_so_a_place_is_named(
        self, told: RunManifest, there: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        for words in (["2"], ["2", "--yes"]):
            assert answer(["rollback", *words, *there]) == 2
            assert "say with --to" in capsys.readouterr().err


class TestRollbackInACluster:
    SPEC: ClassVar[Any] = {"template": {"spec": {"containers": [{"name": "trainer", "image": "r/a:2"}]}}}

    @pytest.fixture
    def cluster(self, tmp_path: Path) -> Iterator[FakeKubernetes]:
        with fake_kubernetes(tmp_path) as fake:
            job = {"metadata": {"name": "gpt", "namespace": "research"}, "spec": self.SPEC}
            told = f"GET {PROXY}/v1/jobs/{JOB}"
            lines = journal_of(a_manifest(image="r/a:1"), a_manifest(image="r/a:2"))
            fake.answers |= {
                f"GET {JOBS}/gpt": (200, job),
                f"PATCH {JOBS}/gpt": (200, job),
                f"{told}/status": (200, a_status()),
                f"{told}/incidents": (200, [INCIDENT]),
                f"{told}/journal": (200, JournalPage(lines, None)),
                f"{told}/ledger": (200, LEDGER),
                f"POST {INTERVENTIONS}": (201, self.done()),
            }
            yield fake

    def done(self) -> dict[str, Any]:
        outcome = {"state": "Done", "outcome": "every worker starts anew"}
        return {"metadata": {"name": "restart-1", "namespace": "research"}, "status": outcome}

    def ask(self, cluster: FakeKubernetes, *words: str) -> int:
        flags = ["--kubeconfig", str(cluster.kubeconfig), "-n", "research", "--job", "gpt"]
        return answer(["rollback", *words, *flags], Program.KUBECTL)

    def test_it_is_only_proposed_until_somebody_says_yes(
        self, cluster: FakeKubernetes, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert self.ask(cluster, "2") == 0
        assert "container trainer: image r/a:2 -> r/a:1, as round 2 told" in capsys.readouterr().out
        assert {each.method for each in cluster.asked if "trainingjobs" in each.path} == {"GET"}

    def test_the_image_is_changed_and_then_every_worker_starts_anew(
        self, cluster: FakeKubernetes, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert self.ask(cluster, "2", "--yes") == 0
        assert "Done: every worker starts anew" in capsys.readouterr().out
        (patch,) = [each for each in cluster.asked if each.method == "PATCH"]
        assert patch.headers["Content-Type"] == "application/json-patch+json"
        assert patch.body[-1] == {
            "op": "replace",
            "path": "/spec/template/spec/containers/0/image",
            "value": "r/a:1",
        }
        asked = cluster.asked[-1]
        assert (asked.method, asked.body["spec"]["action"]) == ("POST", "Restart")
        assert "rolled back to the image of round 2, r/a:1, from r/a:2" in asked.body["spec"]["reason"]

    def test_of_a_refused_change_nothing_is_restarted(
        self, cluster: FakeKubernetes, capsys: pytest.CaptureFixture[str]
    ) -> None:
        cluster.answers[f"PATCH {JOBS}/gpt"] = refusal(403, "Forbidden", "no", "trainingjobs", "gpt")
        assert self.ask(cluster, "2", "--yes") != 0
        assert "the right to patch trainingjobs.holdfast.dev" in capsys.readouterr().err
        assert not [each for each in cluster.asked if "interventions" in each.path]

    def test_a_template_that_is_changed_while_no_restart_can_be_asked_for_is_told_of(
        self, cluster: FakeKubernetes, capsys: pytest.CaptureFixture[str]
    ) -> None:
        cluster.answers[f"POST {INTERVENTIONS}"] = refusal(403, "Forbidden", "no", "interventions", "")
        assert self.ask(cluster, "2", "--yes") != 0
        said = capsys.readouterr().err
        assert "the template is changed, and no worker was started anew" in said
        assert "kubectl holdfast restart gpt -n research" in said

    def test_an_image_that_a_job_told_commands_no_terminal(
        self, cluster: FakeKubernetes, capsys: pytest.CaptureFixture[str]
    ) -> None:
        lines = journal_of(a_manifest(image="r/a\x1b[2J:1"), a_manifest(image="r/a:2"))
        cluster.answers[f"GET {PROXY}/v1/jobs/{JOB}/journal"] = (200, JournalPage(lines, None))
        for words in (["2"], ["2", "--yes"]):
            assert self.ask(cluster, *words) == 0
            assert "r/a\\x1b[2J:1" in capsys.readouterr().out

    def test_the_round_that_runs_needs_nothing_and_a_folder_means_nothing(
        self, cluster: FakeKubernetes, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert self.ask(cluster, "3", "--yes") == 0
        said = capsys.readouterr().out
        assert "nothing is to be changed" in said
        assert "kubectl holdfast restart gpt -n research" in said
        assert self.ask(cluster, "2", "--to", "x") == 2
        assert "leave it out" in capsys.readouterr().err

    def test_its_figures_are_asked_of_the_console_of_the_installation(
        self, cluster: FakeKubernetes, capsys: pytest.CaptureFixture[str]
    ) -> None:
        console = f"/api/v1/namespaces/holdfast/services/holdfast-console:http/proxy/api/v1/jobs/{JOB}/series"
        flags = ["--kubeconfig", str(cluster.kubeconfig), "-n", "research", "--job", "gpt"]
        assert answer(["postmortem", "last", *flags], Program.KUBECTL) == 0
        told = capsys.readouterr()
        assert "Figures over time: the console holdfast-console:http does not answer" in told.out
        cluster.answers[f"GET {console}"] = (200, COLUMNS)
        assert answer(["postmortem", "last", *flags], Program.KUBECTL) == 0
        assert "Loss, median of the ranks" in capsys.readouterr().out


def test_while_the_watchdog_of_a_run_never_was_there_is_nothing_to_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lay_out(tmp_path, port=1).token_file.write_text(TOKEN)
    assert answer(["postmortem", "last", "--state-dir", str(tmp_path)]) == 3
    assert "does not answer" in capsys.readouterr().err
