"""Servers of tools: one by the package of the protocol, one written by hand in an older version."""

from __future__ import annotations

import textwrap
from pathlib import Path

PACKAGE_SERVER = '''
    import asyncio, base64, os, sys
    from pathlib import Path

    from mcp.server.mcpserver import Image, MCPServer
    from mcp.server.mcpserver.exceptions import ToolError

    server = MCPServer("tests")
    folder = Path(os.environ["FOLDER"])

    def note(text):
        with (folder / "notes").open("a") as file:
            print(text, file=file)

    @server.tool()
    def shout(text: str) -> str:
        """Make a text loud."""
        note(f"shout {text}")
        return text.upper()

    @server.tool()
    def refuse() -> str:
        """Raise, with the text of the token that the server wants."""
        raise ToolError("not now, secret")

    @server.tool()
    def table() -> dict[str, int]:
        """Return a map."""
        return {"a": 1}

    @server.tool()
    def draw() -> list[str | Image]:
        """Return an image with its title."""
        return ["a dot", Image(data=b"png", format="png")]

    @server.tool()
    async def hang() -> str:
        """Wait for ever."""
        try:
            note("hang")
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            note("cancelled")
            raise

    arrived = []

    @server.tool()
    async def meet() -> str:
        """Wait for another call."""
        arrived.append(asyncio.Event())
        if len(arrived) == 2:
            arrived[0].set()
        await arrived[0].wait()
        return "met"

    @server.tool()
    def variables() -> str:
        """Return names of environment variables, and the folder."""
        return " ".join([*sorted(os.environ), str(os.listdir())])

    class Guarded:
        """Wants a token, and writes the requests down."""
        def __init__(self, app):
            self.app = app

        async def __call__(self, scope, receive, send):
            if scope["type"] == "http":
                headers = {name.decode(): value.decode() for name, value in scope["headers"]}
                if headers.get("authorization") != "Bearer secret":
                    await send({"type": "http.response.start", "status": 401, "headers": []})
                    await send({"type": "http.response.body", "body": b"no"})
                    return
                if "old" in sys.argv and headers.get("mcp-method") == "server/discover":
                    await send({"type": "http.response.start", "status": 404, "headers": []})
                    await send({"type": "http.response.body", "body": b"no"})
                    return
            await self.app(scope, receive, send)

    if sys.argv[1:]:
        import uvicorn

        app = Guarded(server.streamable_http_app())
        uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
    else:
        server.run()
'''
# Version 2025-06-18 of the protocol. Arguments: what it does instead of the usual.
PLAIN_SERVER = """
    import json, os, subprocess, sys, time
    from pathlib import Path

    folder = Path(os.environ["FOLDER"])
    print("plain server", file=sys.stderr, flush=True)

    def note(text):
        with (folder / "notes").open("a") as file:
            print(text, file=file)

    def reply(message, **content):
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **content}), flush=True)

    def text(words, **more):
        return {"content": [{"type": "text", "text": words}], **more}

    def tool(name, description, **properties):
        schema = {"type": "object", "properties": properties}
        return {"name": name, "description": description, "inputSchema": schema}

    def tools():
        changed = (folder / "changed").exists()
        yield tool("shout", "Make it loud." if not changed else "Make it soft.")
        yield tool("act", "Do as told.", what={"type": "string"})

    def call(message, name, arguments):
        what = arguments.get("what", name)
        note(what)
        if what == "die":
            os._exit(3)
        if what == "die once" and not (folder / "died").exists():
            (folder / "died").touch()
            os._exit(3)
        if what == "hang":
            return
        if what == "child":
            child = subprocess.Popen(["sleep", "1000"])
            return reply(message, result=text(f"{os.getpid()} {child.pid}"))
        if what == "misuse":
            return reply(message, error={"code": -32602, "message": "no such thing"})
        if what == "break":
            return reply(message, error={"code": -32603, "message": "out of order"})
        reply(message, result=text(f"did {what}"))

    for behaviour in sys.argv[1:]:
        if behaviour == "slow":
            time.sleep(1000)
        if behaviour == "broken":
            raise ValueError("no licence")
        if behaviour == "chatty":
            print("welcome!", flush=True)
    note("started")
    for line in sys.stdin:
        message = json.loads(line)
        match message["method"]:
            case "initialize":
                version = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
                reply(message, result={**version, "serverInfo": {"name": "p", "version": "1"}})
            case "tools/list":
                # Two pages.
                first, *others = tools()
                if "empty" in sys.argv:
                    reply(message, result={"tools": []})
                elif message.get("params", {}).get("cursor"):
                    reply(message, result={"tools": others})
                else:
                    reply(message, result={"tools": [first], "nextCursor": "2"})
            case "tools/call":
                wanted = message["params"]
                call(message, wanted["name"], wanted.get("arguments") or {})
            case "notifications/cancelled":
                note("cancelled")
            case method if "id" in message:
                reply(message, error={"code": -32601, "message": f"no {method}"})
"""


def write_servers(folder: Path) -> None:
    """Write the modules `package_server` and `plain_server`."""
    (folder / "package_server.py").write_text(textwrap.dedent(PACKAGE_SERVER))
    (folder / "plain_server.py").write_text(textwrap.dedent(PLAIN_SERVER))
