"""`python -m holdfast.agent.linktest`: the test of the links between nodes, as a command.

One process leads, one on each node joins. Needs no torch, no job and no watchdog.

Exit codes, of the lead and of every member: 0 all links are alike, 1 some are bad, 2 wrong usage, 3 Unknown.
"""

import argparse
import asyncio
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from holdfast.agent.linktest.asked import answer_watchdog
from holdfast.agent.linktest.lead import Lead, Order, checked
from holdfast.agent.linktest.member import Part, take_part
from holdfast.api.errors import HoldfastError, InvalidInput, Problem
from holdfast.api.selftest import Judged, Verdict

USAGE: Final = 2
EXIT_CODES: Final = {Verdict.PASSED: 0, Verdict.FAILED: 1, Verdict.UNKNOWN: 3}
PORT: Final = 29_611


def linktest(arguments: Sequence[str] | None = None) -> NoReturn:
    """Do what the command line asks for and end the process."""
    flags = _parser().parse_args(arguments)
    try:
        judged = ROLES[flags.role](flags)
    except HoldfastError as error:
        sys.stderr.write(f"holdfast linktest: {error}\n")
        sys.exit(USAGE if isinstance(error, InvalidInput) else EXIT_CODES[Verdict.UNKNOWN])
    except OSError as error:
        sys.stderr.write(f"holdfast linktest: {error}\n")
        sys.exit(EXIT_CODES[Verdict.UNKNOWN])
    as_json = msgspec.json.format(msgspec.json.encode(judged), indent=2).decode() if flags.as_json else None
    sys.stdout.write(f"{as_json or as_text(judged)}\n")
    sys.exit(EXIT_CODES[judged.verdict])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m holdfast.agent.linktest",
        description="Measure the links between nodes in rotating pairs, and name what is worse than the rest.",
        allow_abbrev=False,
    )
    parser.add_argument("--json", dest="as_json", action="store_true", help="Write everything as JSON.")
    parser.add_argument(
        "--wait", metavar="S", type=float, default=60.0, help="Seconds to wait for the others (60)."
    )
    roles = parser.add_subparsers(dest="role", required=True, metavar="lead|join|asked")
    lead = roles.add_parser("lead", help="Wait for the nodes, hand out pairs, judge.")
    lead.add_argument("--nodes", metavar="N", type=int, required=True, help="How many nodes will join.")
    lead.add_argument("--listen", metavar="HOST:PORT", default=f"0.0.0.0:{PORT}", help=f"Else all, {PORT}.")
    lead.add_argument("--seconds", metavar="S", type=float, default=4.0, help="Bytes flow for S a pair (4).")
    lead.add_argument(
        "--gang", metavar="S", type=float, default=5.0, help="Then rings of all, for S (5; 0: none)."
    )
    lead.add_argument("--turn", metavar="N", type=int, default=0, help="Which partners: another N, others.")
    join = roles.add_parser("join", help="Take part, as one node.")
    join.add_argument("lead", metavar="HOST:PORT", help="Where the lead listens.")
    join.add_argument("--node", metavar="NAME", default=socket.gethostname(), help="Else the host's name.")
    join.add_argument("--address", metavar="IP", default="", help="Where the others reach this node.")
    asked = roles.add_parser("asked", help="Do what the launcher's environment says; for launchers.")
    asked.add_argument("--node", metavar="NAME", required=True, help="What this node is called.")
    asked.add_argument("--address", metavar="IP", required=True, help="Where the others reach this node.")
    asked.add_argument("--number", metavar="N", type=int, required=True, help="The request that this answers.")
    asked.add_argument("--result", metavar="FILE", type=Path, required=True, help="Where the answer goes.")
    return parser


def _lead(flags: argparse.Namespace) -> Judged:
    order = checked(Order(flags.nodes, flags.seconds, flags.turn, flags.wait, gang_s=flags.gang))
    host, port = parsed_address("--listen", flags.listen)
    return asyncio.run(Lead(order).run(host, port, partial(_listening, host)))


def _listening(host: str, port: int) -> None:
    sys.stderr.write(f"listening at {host}:{port}\n")


def _join(flags: argparse.Namespace) -> Judged:
    return take_part(Part(flags.node, flags.address, flags.wait), parsed_address("HOST:PORT", flags.lead))


def _asked(flags: argparse.Namespace) -> Judged:
    return answer_watchdog(flags.node, flags.address, flags.number, flags.result)


ROLES: Final[Mapping[str, Callable[[argparse.Namespace], Judged]]] = {
    "lead": _lead,
    "join": _join,
    "asked": _asked,
}


def parsed_address(field: str, text: str) -> tuple[str, int]:
    """Host and port. Raises InvalidInput."""
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isdecimal() and int(port) < 1 << 16):
        raise InvalidInput(Problem(field=field, value=text, fix="Give HOST:PORT, such as 10.0.0.1:29611."))
    return host, int(port)


def as_text(judged: Judged) -> str:
    """One line for each node and link that is bad, and the verdict."""
    lines = [f"node {node}  {says}" for node, says in judged.nodes.items()]
    lines += [f"link {each.one} - {each.other}  {each.says}" for each in judged.links]
    return "\n".join([*lines, f"{judged.verdict}: {judged.says}"])
