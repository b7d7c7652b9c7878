"""A tutorial as a test runs it: the files that its page shows, and its commands, in order, in one shell.

A page is Markdown. Its fenced blocks are read:

    ```python title="train.py"        a file, written beside the commands; any language
    ```console                        after `$ ` a command, below it what must appear

What must appear is compared line by line, in order, with what the command printed; `...` stands for anything, a
duration for any other, as does white space; other lines may come between. A comment before a block says more:

    <!-- not run: REASON -->          its commands are for another machine, and why
    <!-- run by: TEST -->             a test that there is already, or a bench, does the same
    <!-- ends with: 1 -->             its last command ends so, which is what the page shows

The head of the page (YAML between `---`) counts them, so that nobody overlooks what is not run, and says which
ports to replace by free ones, and which of `bench/brought/packages.py` it is run with:

    commands: {run: 5, run by other tests: 1, not run: 1}
    ports: [7777]
    brings: [torchtitan]
"""

import os
import re
import shlex
import signal
import socket
import subprocess
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

BLOCK = re.compile(
    r"^(?:<!-- (?P<how>[a-z ]+): (?P<why>.+?) -->\n+)?"
    r"```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)$", re.M)
DURATION = re.compile(r"\b\d+(?:\\\.\d+)?(?:\\ )?(?:ms|s|min)\b")  # in a pattern, so escaped
RUN, RUN_BY, NOT_RUN = "run", "run by other tests", "not run"
REASON_CHARACTERS_MIN = 20
MARK = "\x1e"


class PageWrong(ValueError):
    """A page that cannot be read as a tutorial: the place and what to write."""


class TutorialFailed(AssertionError):
    """A command did not do what its page shows. The text has the command, what was to appear and what did."""


@dataclass(frozen=True, slots=True)
class File:
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Command:
    """`how` is one of RUN, RUN_BY, NOT_RUN; `why` the reason, or the test; `code` what it ends with."""

    text: str
    appears: tuple[str, ...] = ()
    how: str = RUN
    why: str = ""
    code: int = 0


@dataclass(frozen=True, slots=True)
class Page:
    name: str
    steps: tuple[File | Command, ...]
    ports: tuple[int, ...] = ()
    brings: tuple[str, ...] = ()

    @property
    def commands(self) -> Sequence[Command]:
        return [each for each in self.steps if isinstance(each, Command)]

    def counts(self) -> Mapping[str, int]:
        """How many commands there are of each kind that there is."""
        kinds = [each.how for each in self.commands]
        return {how: kinds.count(how) for how in (RUN, RUN_BY, NOT_RUN) if how in kinds}


def read_page(path: Path) -> Page:
    """Raises PageWrong where its head does not count what is in it, a reason is missing, or a block is no step."""
    text = path.read_text()
    head = re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)
    said: Mapping[str, Any] = yaml.safe_load(head[1]) if head else {}
    steps = [step for block in BLOCK.finditer(text) for step in _steps(path.name, block)]
    page = Page(path.name, tuple(steps), tuple(said.get("ports", ())), tuple(said.get("brings", ())))
    if said.get("commands") != page.counts():
        raise PageWrong(f"{path.name}: write `commands: {page.counts()}` at its head, not {said.get('commands')}")
    return page


def _steps(page: str, block: re.Match[str]) -> Iterator[File | Command]:
    if block["title"]:
        yield File(block["title"], block["text"])
    elif block["language"] == "console":
        how, why, code = _said(page, block["how"], block["why"])
        commands = list(_commands(block["text"]))
        if not commands:
            raise PageWrong(f"{page}: a console block has no command; write one after `$ `")
        yield from (replace(each, how=how, why=why) for each in commands[:-1])
        yield replace(commands[-1], how=how, why=why, code=code)


def _said(page: str, how: str | None, why: str | None) -> tuple[str, str, int]:
    match how:
        case None:
            return RUN, "", 0
        case "ends with":
            return RUN, "", int(why or 0)
        case "run by" if why and "::" in why:
            return RUN_BY, why, 0
        case "not run" if why and len(why) >= REASON_CHARACTERS_MIN:
            return NOT_RUN, why, 0
    raise PageWrong(
        f"{page}: `{how}: {why}` before a block; write `not run: a reason`, `run by: FILE::TEST` or `ends with: N`"
    )


def _commands(text: str) -> Iterator[Command]:
    found = list(COMMAND.finditer(text))
    if not found:
        return
    ends = [each.start() for each in found[1:]] + [len(text)]
    for each, end in zip(found, ends, strict=True):
        appears = (line.strip() for line in text[each.end() : end].splitlines())
        yield Command(each[1], tuple(line for line in appears if line and line != "..."))


def left_to(page: Page, benches: Container[str]) -> Page:
    """With the commands that it leaves to one of these to be run."""
    steps = (
        replace(each, how=RUN, why="") if isinstance(each, Command) and each.why in benches else each
        for each in page.steps
    )
    return replace(page, steps=tuple(steps))


def run_page(page: Page, folder: Path, environment: Mapping[str, str], within_s: float) -> None:
    """Every command of it that is to be run. Whatever was started is gone afterwards. Raises TutorialFailed."""
    page = _with_free_ports(page)
    script, log = (folder.parent / f"{page.name}.{suffix}" for suffix in ("sh", "log"))
    script.write_text("".join(_script(page, folder.parent / "files")))
    with log.open("wb") as output:  # not a pipe: what goes on in the background would hold it open
        process = subprocess.Popen(
            ["bash", str(script)],
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    late = ""
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        late = f"took over {within_s:.0f} s"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with what the page left in the background
        process.wait()
    _compare(page, log.read_text(errors="replace"), late)


def _script(page: Page, kept: Path) -> Iterator[str]:
    """Each command between two marks, the second with its exit code; the first that goes wrong ends the script."""
    kept.mkdir(exist_ok=True)
    for number, step in enumerate(page.steps):
        if isinstance(step, File):
            (kept / str(number)).write_text(step.text)
            yield f"mkdir -p {shlex.quote(os.path.dirname(step.name) or '.')}\n"
            yield f"cp {shlex.quote(str(kept / str(number)))} {shlex.quote(step.name)}\n"
        elif step.how == RUN:
            yield f"{step.text}\ncode=$?\nprintf '{MARK}%d{MARK}' $code\n[ $code = {step.code} ] || exit 1\n"


def _compare(page: Page, output: str, late: str) -> None:
    parts = output.split(MARK)
    for place, command in enumerate(each for each in page.commands if each.how == RUN):
        said = parts[2 * place] if 2 * place < len(parts) else ""
        code = parts[2 * place + 1] if 2 * place + 1 < len(parts) else late or "nothing"
        if code != str(command.code):
            raise TutorialFailed(
                f"{page.name}: $ {command.text}\nended with {code}, not {command.code}:\n{said[-4000:]}"
            )
        missing = missing_of(command.appears, said)
        if missing is not None:
            raise TutorialFailed(
                f"{page.name}: $ {command.text}\nthis did not appear: {missing}\nbut this:\n{said[-4000:]}"
            )


def missing_of(appears: Sequence[str], said: str) -> str | None:
    """The first line that did not appear, after those before it; None when all did."""
    left = iter(" ".join(line.split()) for line in said.splitlines())
    for wanted in appears:
        literal = ".*".join(re.escape(part) for part in " ".join(wanted.split()).split("..."))
        pattern = DURATION.sub(r"[0-9.]+\\ ?(ms|s|min)", literal)
        if not any(re.fullmatch(pattern, line) for line in left):
            return wanted
    return None


def _with_free_ports(page: Page) -> Page:
    """The same page, with each of its ports replaced by one that is free here."""
    free = {str(port): str(_free_port()) for port in page.ports}

    def replaced(text: str) -> str:
        for port, other in free.items():
            text = re.sub(rf"\b{port}\b", other, text)
        return text

    steps = (
        File(each.name, replaced(each.text))
        if isinstance(each, File)
        else replace(each, text=replaced(each.text), appears=tuple(map(replaced, each.appears)))
        for each in page.steps
    )
    return replace(page, steps=tuple(steps))


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
