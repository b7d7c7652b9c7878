"""What the sims share with the brain's tests: a job told event by event."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "unit" / "brain"))
