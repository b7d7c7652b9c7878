"""`python -m holdfast.console.trackers`."""

import sys

from holdfast.console.trackers.program import main

if __name__ == "__main__":
    sys.exit(main())
