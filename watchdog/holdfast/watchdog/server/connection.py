"""Who is connected: one record per live WebSocket."""

from dataclasses import dataclass, field

from aiohttp import web

from holdfast.watchdog.server.outbox import Outbox


@dataclass(eq=False)
class Connection:
    """A peer and what it is still to be shown."""

    socket: web.WebSocketResponse
    outbox: Outbox = field(default_factory=Outbox)


@dataclass(eq=False, kw_only=True)
class LauncherConnection(Connection):
    """A member's connection. `boot` as in `membership.Join`."""

    member: str
    node: str
    boot: str


@dataclass(eq=False, kw_only=True)
class AgentConnection(Connection):
    """A node's connection. `boot` as in `telemetry.AgentHello`."""

    node: str
    boot: str
