"""The example's training, which stops where a test wants it to: what happens between two steps is then no race."""

from pathlib import Path

from embeddedrun import wait_until

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "bytes" / "train.py"
VARIABLE = "HOLDFAST_TEST_GATES"

_GATE = f'''
import os
import time


def stop_at_gate(step, part):
    """Wait here, before `step`, while the gate is closed: the step before is completed and its snapshot taken."""
    folder = Path(os.environ["{VARIABLE}"])
    while (folder / f"closed-{{step}}").exists():
        (folder / f"here-{{step}}-{{part.rank}}").touch()
        run.check()
        time.sleep(0.01)


def train(part'''


class Gates:
    """Gates in front of steps. All are open at first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        self.environment = {VARIABLE: str(folder)}

    def script(self) -> str:
        """The example with the gates in it."""
        text = EXAMPLE.read_text()
        for before, after in (("\n\ndef train(part", _GATE), ("        total = ", _THROUGH + "        total = ")):
            assert text.count(before) == 1
            text = text.replace(before, after)
        return text

    def close(self, *steps: int) -> None:
        for step in steps:
            (self._folder / f"closed-{step}").touch()

    def wait(self, step: int, *, ranks: int) -> None:
        """Until that many ranks stand in front of `step`."""
        wait_until(lambda: len(self._here(step)) == ranks, f"{ranks} ranks in front of step {step}")

    def open(self, step: int) -> None:
        (self._folder / f"closed-{step}").unlink()
        for each in self._here(step):
            each.unlink()

    def _here(self, step: int) -> list[Path]:
        return list(self._folder.glob(f"here-{step}-*"))


_THROUGH = "        stop_at_gate(step, part)\n"
