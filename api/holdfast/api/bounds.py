"""How large what is said on the wire may be: beyond it a message is refused where it enters, and nothing is kept.

Each bound lies far beyond what any run says, and far below what arithmetic, a store or a timer cannot take. What
passes here can be journaled, added to, encoded again and shown.
"""

import sys
from typing import Annotated, Final

from msgspec import Meta

# What every reader of JSON takes exactly; one more of it still fits where 64 bits do.
WHOLE_MAX: Final = 2**53 - 1
# The kernel's greatest process id. Source: https://man7.org/linux/man-pages/man5/proc_sys_kernel.5.html (pid_max)
PID_MAX: Final = 2**22
RANK_MAX: Final = 2**24
# More than the thousand years that a job file may say, and short enough for every timer.
SECONDS_MAX: Final = 4e10
# A namespace, a slash and an object's name.
# Source: https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
NAME_LENGTH_MAX: Final = 253
JOB_LENGTH_MAX: Final = 63 + 1 + NAME_LENGTH_MAX
# Twice the largest cluster planned for.
NODES_MAX: Final = 32_768
PER_NODE_MAX: Final = 1024
# Of a spec's own numbers: more than anybody means, and small enough for each product of two.
STEPS_MAX: Final = 10**9
COUNT_MAX: Final = 10**6
TENSOR_MAX: Final = 1024
CONTEXT_MAX: Final = 1024
PIPELINE_MAX: Final = 16_384
REPLICAS_MAX: Final = 64
KEEP_MAX: Final = 10_000
LINE_LENGTH_MAX: Final = 4096
ENTRIES_MAX: Final = 1024
# As much as a launcher's whole frame holds.
TEXT_LENGTH_MAX: Final = 64 * 1024
URI_LENGTH_MAX: Final = 4096
MODULE_NAME: Final = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)*$"
"""A Python module's name, as a regular expression that Go takes as well."""
LEARNED: Final = "learned"
"""Among the modules that are imported before a worker needs them: those that the script imported before."""

Whole = Annotated[int, Meta(ge=0, le=WHOLE_MAX)]
Positive = Annotated[int, Meta(ge=1, le=WHOLE_MAX)]
Rank = Annotated[int, Meta(ge=0, le=RANK_MAX)]
Pid = Annotated[int, Meta(ge=0, le=PID_MAX)]
Nodes = Annotated[int, Meta(ge=0, le=NODES_MAX)]
PerNode = Annotated[int, Meta(ge=0, le=PER_NODE_MAX)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Code = Annotated[int, Meta(ge=-(2**31), le=2**32 - 1)]
"""An exit code, an error number, a register: 32 bits, with a sign or without one."""
Bits = Annotated[int, Meta(ge=-(2**63))]
"""A pattern of 64 bits. msgpack carries no wider number; nothing is ever added to it."""
Seconds = Annotated[float, Meta(ge=-SECONDS_MAX, le=SECONDS_MAX)]
"""A length of time, never infinite and never no number. An age may be a little below zero."""
Figure = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
"""Something measured that is compared with a limit: never infinite and never no number."""
Rate = Annotated[float, Meta(ge=0, le=1e30)]
"""Bytes a second."""
Job = Annotated[str, Meta(max_length=JOB_LENGTH_MAX)]
Name = Annotated[str, Meta(max_length=NAME_LENGTH_MAX)]
Uri = Annotated[str, Meta(max_length=URI_LENGTH_MAX)]
Line = Annotated[str, Meta(max_length=LINE_LENGTH_MAX)]
Text = Annotated[str, Meta(max_length=TEXT_LENGTH_MAX)]
Few = Meta(max_length=64)
Many = Meta(max_length=4096)
"""How many entries a list or a mapping may have. A frame holds no more than some thousand of the smallest."""
