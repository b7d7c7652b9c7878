"""Each phase of a rank has a colour and a letter of its own on the map."""

import re
from pathlib import Path

import holdfast.console
from holdfast.console.heard import PHASES

STATIC = Path(holdfast.console.__file__).parent / "static"


def test_there_are_as_many_colours_as_phases() -> None:
    page, colours = (STATIC / "page.css").read_text(), (STATIC / "rankcolours.js").read_text()
    numbers = [str(number) for number in range(len(PHASES))]
    assert re.findall(r"--phase-(\d+):", page) == numbers
    assert re.findall(r"\.swatch\.phase-(\d+) ", page) == numbers
    assert f"const PHASES = {len(PHASES)};" in colours


def test_each_phase_has_a_letter_that_none_before_it_has() -> None:
    taken: set[str] = set()
    for name in PHASES:
        letter = next((each for each in name if each not in taken), "")
        assert letter, name
        taken.add(letter)
