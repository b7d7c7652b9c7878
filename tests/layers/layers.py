"""Runs the layers of the tests, side by side where they mostly wait, and says where the time went.

    python tests/layers/layers.py check       what `make check` runs
    python tests/layers/layers.py here        what `make test` runs: all that needs nobody's rights and ten minutes
    python tests/layers/layers.py all         what `make test FULL=1` runs: everything, as root
    python tests/layers/layers.py unit sim    these layers, whole; `unit` is a few of them

What a layer prints is kept in build/tests/LAYER.txt and shown whole when it has ended, so that nothing is mixed;
once a minute a line says what still runs. The end is a table: seconds by the clock, seconds of processors (of a
layer's processes and those that they waited for, not of containers), the share of waiting; and one of what was not
proved: which tests of which layer, how many, why, and the command that would. It fails when a layer failed. One
that needs a failed one is not started; the others run all the same, so that one run says all that is wrong. After
Ctrl-C the layers are interrupted and end in order; a second one kills them.

Only Python's own library is used: it runs before anything is installed, so that Kubernetes is built meanwhile.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests" / "versions"))

from training_tests import TESTS  # noqa: E402  from the folder that is on the path only now

OUTPUT = ROOT / "build" / "tests"
BIN = ROOT / ".venv" / "bin"
POLL_S = 0.1
SAYS_WHAT_RUNS_EVERY_S = 60.0
ENDS_WITHIN_S = 60.0  # after an interruption: servers are stopped, namespaces unmounted
WHOLE_RUN = "make test FULL=1"
SIDE_BY_SIDE = 3  # layers; each waits about half of its time, and there are two cores at least


@dataclass(frozen=True)
class Layer:
    """A command that passes or fails. It starts when those that it `needs` have passed and those `after` ended."""

    name: str
    command: tuple[str, ...]
    needs: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    is_background: bool = False  # takes no place of another layer
    not_here: str = ""  # why an ordinary run leaves it out: what it needs
    tests: tuple[str, ...] = ()  # that its command has another pytest run

    def here(self) -> "Layer":
        """As an ordinary run has it: pytest leaves out, and counts, what this machine lacks, or all of it."""
        command = (PYTEST, "--layer", self.name, *self.tests) if self.tests else self.command
        if PYTEST not in command:
            return self
        how = ("--leave-out", self.not_here) if self.not_here else ("--here",)
        return replace(self, command=(*command, *how), needs=(INSTALL.name,) if self.not_here else self.needs)


PYTEST = str(BIN / "pytest")
# On two cores, beside two other layers, a test of real processes can miss a limit that is not what it is about. It
# runs once more, whole; the third such test of a layer fails at once.
AGAIN = ("--reruns", "1", "--max-suite-reruns", "2", "--rerun-show-tracebacks")


def pytest_layer(
    name: str,
    *flags: str,
    folder: str = "",
    needs: Sequence[str] = (),
    after: Sequence[str] | None = None,
    not_here: str = "",
    environment: Sequence[str] = (),
) -> Layer:
    """Begins after the quick checks, for these say most in the least time, unless `after` says otherwise."""
    command = (PYTEST, "--layer", name, *flags, f"tests/{folder or name}")
    if environment:
        command = ("env", *environment, *command)
    return Layer(
        name, command, (INSTALL.name, *needs), QUICK if after is None else tuple(after), not_here=not_here
    )


def unit_layer(name: str, *folders: str) -> Layer:
    """These of tests/unit, in one process: it collects and imports no others, and what they share is made once."""
    command = (PYTEST, "--layer", name, *(f"tests/unit/{folder}" for folder in folders))
    return Layer(name, command, (INSTALL.name,))


INSTALL = Layer("install", ("make", "--no-print-directory", "install"))
FORMAT = Layer("format", (str(BIN / "ruff"), "format", "--check", "."), (INSTALL.name,))
STYLE = Layer("style", (str(BIN / "ruff"), "check", "."), (INSTALL.name,))
TYPES = Layer("types", (str(BIN / "mypy"),), (INSTALL.name,))
IMPORTS = Layer("imports", (str(BIN / "lint-imports"), "--no-cache"), (INSTALL.name,))

TRAINING = ("agent", "checkpoint", "integrations", "launch", "linktest", "memory", "selftest", "trainer")
# Those that take longest first.
UNIT = (
    unit_layer("unit-watchdog", "brain", "detectors", "runbook", "watchdog"),
    unit_layer("unit-tools", "bench", "cli", "planner", "promises", "release", "repository", "simulator"),
    unit_layer("unit-operator", "api", "chart", "console", "operator", "wire"),
    unit_layer("unit-training", *TRAINING),
)
CHECK = (INSTALL, *UNIT, TYPES, FORMAT, STYLE, IMPORTS)
QUICK = tuple(layer.name for layer in CHECK)
GET_KUBERNETES = (sys.executable, "tests/servers/kubernetes_binaries.py")
BUILD = Layer("kubernetes-build", (*GET_KUBERNETES, "newest"), is_background=True)
CONTAINERD = Layer("containerd-build", (*GET_KUBERNETES, "containerd"), is_background=True)
# One after the other: the newest is waited for by most. Two compilers at once would only share the cores.
OLDEST_BUILD = Layer(
    "oldest-build", (*GET_KUBERNETES, "oldest"), after=(BUILD.name, CONTAINERD.name), is_background=True
)
# Built while the checks run: it takes half a minute where code changed, three where nothing is there yet.
IMAGES = Layer(
    "images",
    ("env", f"PYTHONPATH={ROOT / 'tests' / 'servers'}", str(BIN / "python"), "tests/cluster/holdfast_images.py"),
    (INSTALL.name,),
    is_background=True,
)
# A judge of manifests, in an environment of its own: half a minute where it is not there yet.
JUDGE = Layer("judge-install", (sys.executable, "tests/judge/judge.py"), is_background=True)
# The browser that the page is tested in, where it is missing.
CHROMIUM = Layer("chromium", (sys.executable, "tests/browser/chromium.py"), is_background=True)
# Slurm and an ssh server, where they are missing.
SLURM = Layer(
    "slurm-install", (str(BIN / "python"), "tests/slurm/slurm_packages.py"), (INSTALL.name,), is_background=True
)
# A server of MLflow, in an environment of its own: a minute where it is not there yet.
MLFLOW = Layer(
    "mlflow-install",
    ("env", f"PYTHONPATH={ROOT / 'tests' / 'servers'}", str(BIN / "python"), "tests/servers/mlflow_server.py"),
    (INSTALL.name,),
    is_background=True,
)
# Every decoder, for half a minute, from one seed; `make fuzz` goes on for an hour from any.
FUZZ = Layer(
    "fuzz",
    (str(BIN / "python"), "tests/unit/api/decoder_fuzzer.py", "30", "1"),
    (INSTALL.name,),
    QUICK,
)
KUBERNETES = "needs Kubernetes, which is built for minutes, and etcd of Debian's packages"
ROOT_AND_KUBERNETES = f"{KUBERNETES}, and root"
# The lowest versions of all that is installed, in an environment of its own: minutes, and gigabytes for a while.
LOWEST = Layer(
    "lowest",
    (str(BIN / "python"), "tests/versions/lowest.py"),
    (INSTALL.name,),
    QUICK,
    not_here="downloads the oldest torch that is supported: gigabytes",
    tests=TESTS,
)
# A file stays in one process, for its tests share servers. Files keep their order: else those with few tests come
# last, which are the long ones, and one process ends long after the other.
BY_FILE = ("-n", "4", "--dist", "loadfile", "--no-loadscope-reorder")
# In the order in which they start where there is a place: those that take longest first.
WHOLE = (
    # One story: what comes after a failure says nothing. It takes longest, and mostly waits: it begins at once.
    pytest_layer(
        "cluster",
        *("-x", "--durations=12"),
        needs=(BUILD.name, CONTAINERD.name, IMAGES.name),
        after=(),
        not_here=ROOT_AND_KUBERNETES,
    ),
    pytest_layer(
        "kubernetes", "-m", "kubernetes", *AGAIN, folder="integration", needs=(BUILD.name,), not_here=KUBERNETES
    ),
    pytest_layer("integration", "-m", "not kubernetes", "--keeps", "80", *BY_FILE, *AGAIN),
    # What the operator does depends on the release that it meets.
    pytest_layer(
        "kubernetes-oldest",
        *("-m", "kubernetes", *AGAIN),
        folder="integration/operator",
        needs=(OLDEST_BUILD.name,),
        not_here=KUBERNETES,
        environment=("HOLDFAST_TEST_KUBERNETES=oldest",),
    ),
    pytest_layer("tenants", *AGAIN, needs=(BUILD.name,), not_here=KUBERNETES),
    LOWEST,
    pytest_layer("sim"),
    pytest_layer("contract", needs=(MLFLOW.name,)),
    pytest_layer("judge", needs=(JUDGE.name,)),
    pytest_layer(
        "browser", *AGAIN, needs=(CHROMIUM.name,), not_here="needs root, and a browser of Debian's packages"
    ),
    pytest_layer("slurm", *AGAIN, needs=(SLURM.name,), not_here="needs root, and Slurm of Debian's packages"),
    FUZZ,
)
SETUP = (BUILD, CONTAINERD, OLDEST_BUILD, IMAGES, JUDGE, CHROMIUM, SLURM, MLFLOW)
LAYERS = {layer.name: layer for layer in (*CHECK, *SETUP, *WHOLE)}
ALL, HERE = "all", "here"
# What pip installs needs no rights; what else has to be set up is for layers that an ordinary run leaves out.
GROUPS = {
    "check": CHECK,
    "unit": UNIT,
    HERE: (*CHECK, JUDGE, MLFLOW, *(layer.here() for layer in WHOLE)),
    ALL: (BUILD, CONTAINERD, *CHECK, *(layer for layer in SETUP if layer not in (BUILD, CONTAINERD)), *WHOLE),
}


def environment() -> dict[str, str]:
    """This one's, but compiled modules are kept: tests start Python many hundred times, with the same modules."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


class Running:
    """A layer at work, in a process group of its own, so that an interruption reaches it once and whole."""

    def __init__(self, layer: Layer, output: Path):
        self.layer = layer
        self.output = output
        self.started = time.monotonic()
        output.with_suffix(".json").unlink(missing_ok=True)
        with output.open("wb") as written:
            self.process = subprocess.Popen(
                layer.command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=subprocess.STDOUT,
                env=environment(),
                start_new_session=True,
            )

    def ended(self) -> "Ended | None":
        """How it ended; None while it runs."""
        pid, status, usage = os.wait4(self.process.pid, os.WNOHANG)
        if pid == 0:
            return None
        code = self.process.returncode = os.waitstatus_to_exitcode(status)
        took_s = time.monotonic() - self.started
        return Ended(
            self.layer.name,
            code,
            took_s,
            max(usage.ru_utime + usage.ru_stime, self._noted("cpu_s", 0.0)),
            tuple(NotProved(self.layer.name, **each) for each in self._noted("not_proved", ())),
            sum(test["run_again"] for test in self._noted("tests", {}).values()),
        )

    def _noted(self, what: str, otherwise: Any) -> Any:
        """What the layer itself noted: of the processors, children that nobody waited for are in it."""
        noted = self.output.with_suffix(".json")
        try:
            return json.loads(noted.read_text())[what]
        except (OSError, ValueError, LookupError):
            return otherwise

    def send(self, which: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, which)


@dataclass(frozen=True)
class NotProved:
    """Tests of a layer that did not run, why, and the command that runs them."""

    layer: str
    tests: int
    reason: str
    proved_by: str

    def row(self) -> str:
        return f"{self.tests:6}  {self.layer:12} {self.proved_by:26} {self.reason}"


@dataclass(frozen=True)
class Ended:
    """How a layer ended: its exit status, or minus the signal that ended it; what it left out, and how many tests
    were run again.
    """

    name: str
    code: int
    wall_s: float
    cpu_s: float
    not_proved: tuple[NotProved, ...] = ()
    run_again: int = 0

    def row(self) -> str:
        waiting = max(0.0, 1.0 - self.cpu_s / self.wall_s) if self.wall_s else 0.0
        how = "passed" if self.code == 0 else f"FAILED ({self.code})"
        how += f", {self.run_again} RUN AGAIN" if self.run_again else ""
        return f"{self.wall_s:9.1f} {self.cpu_s:8.1f} {waiting:8.0%}  {self.name}: {how}"


class Plan:
    """Which layer may start now. None waits for a layer that is not asked for."""

    def __init__(self, layers: Sequence[Layer]):
        self._asked = {layer.name for layer in layers}
        self._left = list(layers)
        self._passed: set[str] = set()
        self._ended: set[str] = set()
        self.left_out: list[str] = []

    def startable(self, running: Sequence[Layer]) -> Iterator[Layer]:
        """Each layer that starts now, while there is a place."""
        places = SIDE_BY_SIDE - sum(not layer.is_background for layer in running)
        for layer in list(self._left):
            waits_for = (set(layer.needs) - self._passed | set(layer.after) - self._ended) & self._asked
            if not waits_for and (layer.is_background or places > 0):
                places -= not layer.is_background
                self._left.remove(layer)
                yield layer

    def note(self, ended: Ended) -> None:
        """A layer ended. What needs one that failed is left out."""
        self._ended.add(ended.name)
        if ended.code == 0:
            self._passed.add(ended.name)
            return
        gone = {ended.name}
        for layer in list(self._left):
            if gone & set(layer.needs):
                gone.add(layer.name)
                self._left.remove(layer)
                self._ended.add(layer.name)
                self.left_out.append(layer.name)


class Interruptions:
    """Counts Ctrl-C and the signal that ends a program. Nothing is cut short by one: whoever runs layers looks."""

    def __init__(self) -> None:
        self.count = 0

    def listen(self) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, self._note)

    def _note(self, *_: object) -> None:
        self.count += 1


def run(
    layers: Sequence[Layer],
    interruptions: Interruptions,
    output: Path = OUTPUT,
    say: Callable[[str], None] = print,
    note: Callable[[Ended], None] = lambda ended: None,
) -> int:
    """Run them, and say what was not proved.

    `note` is called as each ends. Returns 0 when all passed, 1 when one failed, 130 when interrupted.
    """
    output.mkdir(parents=True, exist_ok=True)
    plan, running, ended = Plan(layers), list[Running](), list[Ended]()
    started = said = time.monotonic()
    while not interruptions.count:
        for layer in plan.startable([each.layer for each in running]):
            running.append(Running(layer, output / f"{layer.name}.txt"))
        if not running:
            break
        time.sleep(POLL_S)
        for each in list(running):
            how = each.ended()
            if how is not None:
                running.remove(each)
                ended.append(how)
                plan.note(how)
                note(how)
                show(each, how, say)
        if time.monotonic() - said > SAYS_WHAT_RUNS_EVERY_S:
            said = time.monotonic()
            say(f"{said - started:.0f} s: {', '.join(each.layer.name for each in running)} running")
    if interruptions.count:
        end(running, interruptions)
        for each in running:
            say(f"interrupted: {each.layer.name}; what it said is in {each.output}")
        return 130
    for line in table(ended, time.monotonic() - started):
        say(line)
    for line in not_proved(ended):
        say(line)
    for name in plan.left_out:
        say(f"not run, for what it needs failed: {name}")
    return int(any(each.code for each in ended))


def show(layer: Running, how: Ended, say: Callable[[str], None]) -> None:
    say(f"=== {how.name} {'passed' if how.code == 0 else f'FAILED ({how.code})'} after {how.wall_s:.0f} s")
    said = layer.output.read_text(errors="replace").rstrip()
    if said:
        say(said)


def table(ended: Sequence[Ended], wall_s: float) -> Iterator[str]:
    yield f"{'seconds':>9} {'of CPU':>8} {'waiting':>8}  layer"
    for each in sorted(ended, key=lambda each: -each.wall_s):
        yield each.row()
    yield f"{wall_s:9.1f} {sum(each.cpu_s for each in ended):8.1f} {'':8}  all, on {os.cpu_count()} cores"


def not_proved(ended: Sequence[Ended]) -> Iterator[str]:
    """What layers left out, the most first."""
    found = [each for one in ended for each in one.not_proved]
    if not found:
        return
    yield ""
    yield "not proved on this machine by this run:"
    yield f"{'tests':>6}  {'of layer':12} {'proved by':26} why not here"
    for each in sorted(found, key=lambda each: (-each.tests, each.layer, each.reason)):
        yield each.row()
    yield f"{sum(each.tests for each in found):6}  in all"


def end(running: Sequence[Running], interruptions: Interruptions) -> None:
    """Interrupt them and wait until they have cleared up; another interruption, or too long a time, kills."""
    seen, left = interruptions.count, list(running)
    for each in left:
        each.send(signal.SIGINT)
    deadline = time.monotonic() + ENDS_WITHIN_S
    while left and interruptions.count == seen and time.monotonic() < deadline:
        time.sleep(POLL_S)
        left = [each for each in left if each.ended() is None]
    for each in running:
        each.send(signal.SIGKILL)  # also what a layer left behind in its group


def chosen(words: Sequence[str], known: Mapping[str, Layer] = LAYERS) -> tuple[Layer, ...]:
    """The layers that the words name. Raises ValueError."""
    layers: list[Layer] = []
    for word in words:
        if word not in GROUPS and word not in known:
            raise ValueError(f"no layer {word}; there are: {', '.join((*GROUPS, *known))}")
        layers += GROUPS.get(word) or [known[word]]
    return tuple(dict.fromkeys(layers))


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)
    words = sys.argv[1:] or ["check"]
    try:
        asked = chosen(words)
    except ValueError as error:
        sys.exit(str(error))
    if ALL in words and os.geteuid() != 0:
        sys.exit(
            f"{WHOLE_RUN} makes nodes of namespaces and installs packages: run it as root, or make test without"
        )
    heard = Interruptions()
    heard.listen()
    sys.exit(run(asked, heard))
