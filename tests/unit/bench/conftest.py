"""The benches are scripts beside the package; their pure parts are imported from where they lie."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
