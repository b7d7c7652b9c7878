"""Self-tests of a node's devices, and tests of the links between nodes: what is asked for, what comes of it.

The watchdog asks (`TestWanted`), the launcher runs the test where the GPUs are, while no worker uses them, and
answers (`Tested`). Results are digests of exact arithmetic, so that equal devices must answer alike: they are
compared with a golden table and with each other.
"""

from enum import StrEnum
from typing import Annotated, Final

import msgspec

from holdfast.api.bounds import Figure, Line, Many, Name, Port, Rate, Seconds, Text, Whole

LINKS_FAILED: Final = "link test failed"
"""The cause of a finding of a test of links: of a node, or of the link to another."""

TOPOLOGY: Final = "topology"
"""Whether the NVLink domains suit what the job asks for. Failed, it says nothing against the devices."""

GOLDEN_VARIABLE: Final = "HOLDFAST_GOLDEN"
"""In a launcher's environment: the golden table that its self-tests are compared with."""


class TestLevel(StrEnum):
    """How thorough. LIGHT takes less than a minute, FULL less than ten on a GPU."""

    __test__ = False  # not a test of pytest's

    LIGHT = "light"
    FULL = "full"


TAKES_S_MAX: Final = {TestLevel.LIGHT: 60.0, TestLevel.FULL: 600.0}
"""How long a self-test of a node with GPUs takes at most."""


class Verdict(StrEnum):
    """What a check says. UNKNOWN: it could not be run, or there is nothing to compare with."""

    PASSED = "Passed"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


class CheckResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """One check of one device.

    `device` is the GPU's UUID, "cpu", or "node" for what concerns all. `like` names what must answer alike (model,
    driver, library versions, the check's own version): two results of equal `check` and `like` whose `digest`s
    differ mean that one of the two devices computes wrong. Empty `digest`: nothing to compare. `rate` is the bytes
    a second that were measured; None: none were.
    """

    check: Name
    device: Name
    verdict: Verdict
    says: Text
    took_s: Seconds
    like: Text = ""
    digest: Name = ""
    rate: Rate | None = None


class UsualLink(msgspec.Struct, frozen=True):
    """What the middle link of a fleet had when many were compared: the round trip in seconds, bytes per second."""

    latency_s: Seconds
    rate: Figure


class LinkTest(msgspec.Struct, frozen=True, omit_defaults=True):
    """One member's part in a test of the links between members.

    They meet at `host` and `port`, where one of them `leads`; only who shows `token` takes part. `members` are all
    who may, told to the lead alone. Bytes flow for `flow_s` seconds between each two that are measured, then for
    `gang_s` in rings of all; everything is over `limit_s` seconds after it began, whoever is silent. `usual` is
    what a few links are compared with.
    """

    token: Name
    host: Name
    port: Port
    flow_s: Seconds
    limit_s: Seconds
    gang_s: Seconds = 0.0
    leads: bool = False
    members: tuple[Name, ...] = ()
    usual: UsualLink | None = None


class BadLink(msgspec.Struct, frozen=True):
    """A link that is worse than the others, and in what."""

    one: Name
    other: Name
    says: Line


class Judged(msgspec.Struct, frozen=True):
    """What a test of links came to. `nodes`: those at whose end the fault is, with what was seen; `links`: bad
    ones that no such node explains; `absent`: who did not come; `usual`: the middle link, where enough were
    compared. Unknown where too little was measured to compare.
    """

    verdict: Verdict
    nodes: Annotated[dict[Name, Line], Many] = {}
    links: Annotated[tuple[BadLink, ...], Many] = ()
    says: Text = ""
    absent: Annotated[tuple[Name, ...], Many] = ()
    usual: UsualLink | None = None


class TestWanted(msgspec.Struct, frozen=True, tag=True):
    """Watchdog to launcher: test this node's devices as soon as no worker of yours uses them.

    `number` names the request; shown again it is the same. `tensor` is how many ranks must share one NVLink
    domain. With `links`, these are tested and the devices are not.
    """

    __test__ = False

    number: int
    level: TestLevel
    reason: str
    tensor: int = 1
    links: LinkTest | None = None


class Tested(msgspec.Struct, frozen=True, tag=True):
    """Launcher to watchdog: what came of request `number`. `links`: what the lead of a test of links has found."""

    __test__ = False

    number: Whole
    level: TestLevel
    verdict: Verdict
    took_s: Seconds
    checks: Annotated[tuple[CheckResult, ...], Many] = ()
    says: Text = ""
    links: Judged | None = None
