"""The peer: a bare aiohttp server on the same core that takes the same frames and sends a short one back for each.

It decodes nothing, decides nothing and keeps nothing: what is left is the price of the connection.
"""

import asyncio
import os
import sys
from pathlib import Path

from aiohttp import web

ANSWER = bytes(24)


async def serve(request: web.Request) -> web.WebSocketResponse:
    socket = web.WebSocketResponse(compress=False, heartbeat=15.0)
    await socket.prepare(request)
    async for _ in socket:
        await socket.send_bytes(ANSWER)
    return socket


async def main(core: int, told_in: Path) -> None:
    os.sched_setaffinity(0, {core})
    application = web.Application()
    for path in ("/v1/member", "/v1/agent"):
        application.router.add_get(path, serve)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=4096).start()
    told_in.write_text(str(runner.addresses[0][1]))
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), Path(sys.argv[2])))
