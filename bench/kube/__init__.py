"""What the operator's bench plays with: a real API server, its log of requests, bulk players and bare peers.

The API server and the scripted watchdog are those of the tests; they lie beside the package, not in it.
"""

import sys
from pathlib import Path

_TESTS = Path(__file__).parents[2] / "tests"
# At the end: nothing there may hide anything else.
sys.path += [str(_TESTS / "servers"), str(_TESTS / "integration" / "operator")]
