"""Writes the dashboards that the chart ships.

python helm/dashboards          writes helm/holdfast/dashboards/*.json
python helm/dashboards --check  exit code 1 when one is out of step
"""

import json
import sys
from pathlib import Path

import fleet
import goodput
import job
import node

FOLDER = Path(__file__).resolve().parents[1] / "holdfast" / "dashboards"
DASHBOARDS = (fleet.DASHBOARD, job.DASHBOARD, node.DASHBOARD, goodput.DASHBOARD)


def written() -> dict[Path, str]:
    """What each file should hold."""
    return {FOLDER / f"{each.uid}.json": json.dumps(each.json(), indent=1) + "\n" for each in DASHBOARDS}


def main() -> int:
    texts = written()
    stale = [path for path, text in texts.items() if not path.exists() or path.read_text() != text]
    stale += [path for path in FOLDER.glob("*.json") if path not in texts]
    if "--check" in sys.argv[1:]:
        for path in stale:
            sys.stderr.write(f"{path} is out of step; run python helm/dashboards\n")
        return bool(stale)
    for path in stale:
        if path in texts:
            path.write_text(texts[path])
        else:
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
