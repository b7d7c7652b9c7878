"""`python -m holdfast.agent`."""

import sys

from holdfast.agent.program import main

sys.exit(main())
