"""The chart's rules with minutes made seconds: expressions stay, what they wait for and look back on shrinks."""

import re
from pathlib import Path

WAIT, WINDOW = "1s", "8s"
# Ages that alerts compare with, in seconds: how long an alert about something that happened once stays.
AGES = {
    "gpus.yaml": {"< 600": "< 6"},
    "jobs.yaml": {"> 900": "> 30"},
    "nodes.yaml": {"> -300": "> 115"},
}


def shortened(rules: Path, into: Path) -> Path:
    """A copy of one file of rules."""
    text = re.sub(r"\bfor: \w+", f"for: {WAIT}", rules.read_text())
    text = re.sub(r"\[\d+[smh]\]", f"[{WINDOW}]", text)
    for told, short in AGES.get(rules.name, {}).items():
        assert told in text, f"{rules.name} compares no age with {told}"
        text = text.replace(told, short)
    copy = into / rules.name
    copy.write_text(text)
    return copy
