"""Runs the layers of the tests, side by side where they mostly wait, and says where the time went.

    python tests/layers/layers.py check       what `make check` runs
    python tests/layers/layers.py all         what `make test` runs
    python tests/layers/layers.py unit sim    these layers; `unit` is a few of them

What a layer prints is kept in build/tests/LAYER.txt and shown whole when it has ended, so that nothing is mixed;
once a minute a line says what still runs. The end is one table: seconds by the clock, seconds of processors (of a
layer's processes and those that they waited for, not of containers), the share of waiting, and how many tests were
skipped or run again. It fails when a layer failed. One that needs a failed one is not started; the others run all
the same, so that one run says all that is wrong. After Ctrl-C the layers are interrupted and end in order; a
second one kills them.

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
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
OUTPUT = ROOT / "build" / "tests"
BIN = ROOT / ".venv" / "bin"
POLL_S = 0.1
SAYS_WHAT_RUNS_EVERY_S = 60.0
ENDS_WITHIN_S = 60.0  # after an interruption: servers are stopped, namespaces unmounted
SIDE_BY_SIDE = 3  # layers; each waits about half of its time, and there are two cores at least


@dataclass(frozen=True)
class Layer:
    """A command that passes or fails. It starts when those that it `needs` have passed and those `after` ended."""

    name: str
    command: tuple[str, ...]
    needs: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    is_background: bool = False  # takes no place of another layer, and gives way to all


# On two cores, beside two other layers, a test of real processes can miss a limit that is not what it is about. It
# runs once more, whole; the third such test of a layer fails at once.
AGAIN = ("--reruns", "1", "--max-suite-reruns", "2", "--rerun-show-tracebacks")


def pytest_layer(
    name: str, *flags: str, folder: str = "", needs: Sequence[str] = (), after: Sequence[str] | None = None
) -> Layer:
    """Begins after the quick checks, for these say most in the least time, unless `after` says otherwise."""
    command = (str(BIN / "pytest"), "--layer", name, *flags, f"tests/{folder or name}")
    return Layer(name, command, (INSTALL.name, *needs), QUICK if after is None else tuple(after))


def unit_layer(name: str, *folders: str) -> Layer:
    """These of tests/unit, in one process: it collects and imports no others, and what they share is made once."""
    command = (str(BIN / "pytest"), "--layer", name, *(f"tests/unit/{folder}" for folder in folders))
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
BUILD = Layer("kubernetes-build", (sys.executable, "tests/servers/kubernetes_binaries.py"), is_background=True)
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
# A file stays in one process, for its tests share servers. Files keep their order: else those with few tests come
# last, which are the long ones, and one process ends long after the other.
BY_FILE = ("-n", "4", "--dist", "loadfile", "--no-loadscope-reorder")
# In the order in which they start where there is a place: those that take longest first.
WHOLE = (
    # One story: what comes after a failure says nothing. It takes longest, and mostly waits: it begins at once.
    pytest_layer("cluster", "-x", "--durations=12", needs=(BUILD.name, IMAGES.name), after=()),
    pytest_layer("kubernetes", "-m", "kubernetes", *AGAIN, folder="integration", needs=(BUILD.name,)),
    pytest_layer("integration", "-m", "not kubernetes", *BY_FILE, *AGAIN),
    pytest_layer("tenants", *AGAIN, needs=(BUILD.name,)),
    pytest_layer("sim"),
    pytest_layer("contract", needs=(MLFLOW.name,)),
    pytest_layer("judge", needs=(JUDGE.name,)),
    pytest_layer("browser", *AGAIN, needs=(CHROMIUM.name,)),
    pytest_layer("slurm", *AGAIN, needs=(SLURM.name,)),
    FUZZ,
)
LAYERS = {layer.name: layer for layer in (*CHECK, BUILD, IMAGES, JUDGE, CHROMIUM, SLURM, MLFLOW, *WHOLE)}
GROUPS = {
    "check": CHECK,
    "unit": UNIT,
    "all": (BUILD, *CHECK, IMAGES, JUDGE, CHROMIUM, SLURM, MLFLOW, *WHOLE),
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
        nice = ("nice", "-n", "10") if layer.is_background else ()
        with output.open("wb") as written:
            self.process = subprocess.Popen(
                [*nice, *layer.command],
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
            max(usage.ru_utime + usage.ru_stime, self._noted("cpu_s")),
            int(self._noted("skipped")),
            int(self._noted("run_again")),
        )

    def _noted(self, what: str) -> float:
        """What the layer itself noted: of the processors, children that nobody waited for are in it."""
        noted = self.output.with_suffix(".json")
        try:
            return float(json.loads(noted.read_text())[what])
        except (OSError, ValueError, LookupError):
            return 0.0

    def send(self, which: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, which)


@dataclass(frozen=True)
class Ended:
    """How a layer ended: its exit status, or minus the signal that ended it.

    And how many of its tests were skipped, or run again.
    """

    name: str
    code: int
    wall_s: float
    cpu_s: float
    skipped: int = 0
    run_again: int = 0

    def row(self) -> str:
        waiting = max(0.0, 1.0 - self.cpu_s / self.wall_s) if self.wall_s else 0.0
        how = "passed" if self.code == 0 else f"FAILED ({self.code})"
        how += f", {self.skipped} SKIPPED" if self.skipped else ""
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
) -> int:
    """Run them. Returns 0 when all passed, 1 when one failed, 130 when interrupted."""
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
    try:
        asked = chosen(sys.argv[1:] or ["check"])
    except ValueError as error:
        sys.exit(str(error))
    heard = Interruptions()
    heard.listen()
    sys.exit(run(asked, heard))
