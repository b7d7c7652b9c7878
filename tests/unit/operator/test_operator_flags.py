"""Each flag of the operator is a value of the chart, or a line of operator/README.md."""

import re
from pathlib import Path

import pytest
from click import Option

from holdfast.operator.program import command

ROOT = Path(__file__).parents[3]
ROW = re.compile(r"\| `(?P<flag>--[a-z-]+)` \| (?P<default>[^|]+) \|")
ROWS = {row["flag"]: row["default"].strip("` ") for row in ROW.finditer((ROOT / "operator/README.md").read_text())}
IN_THE_CHART = set(
    re.findall(r"- '?(--[a-z-]+)[=\n]", (ROOT / "helm/holdfast/templates/operator.yaml").read_text())
)
FLAGS = {each.opts[0]: each for each in command.params if isinstance(each, Option)}


def test_every_flag_is_told_of() -> None:
    assert set(FLAGS) - IN_THE_CHART - set(ROWS) == set()
    assert set(ROWS) <= set(FLAGS), "one that is gone"


@pytest.mark.parametrize("flag", sorted(ROWS))
def test_the_page_has_the_default_that_a_flag_has(flag: str) -> None:
    told, given = ROWS[flag], FLAGS[flag].default
    if given == "":  # made when it starts; its help says of what
        assert f"[default: {told}]" in (FLAGS[flag].help or "")
    else:
        assert told == (f"{given:g}" if isinstance(given, float) else given)
