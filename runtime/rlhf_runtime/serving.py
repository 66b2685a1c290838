"""Servers in threads of their own, which close fast."""

from __future__ import annotations

import threading
from functools import partial
from socketserver import BaseServer

CLOSE_SECONDS = 0.05
"""How often a server looks whether it is to close: its close takes up to as long."""


def serve_in_thread(server: BaseServer, name: str) -> None:
    """Serve until `stop_serving`, or until the process ends."""
    serve = partial(server.serve_forever, CLOSE_SECONDS)
    threading.Thread(target=serve, name=name, daemon=True).start()


def stop_serving(server: BaseServer) -> None:
    """Serve no more, and give the port back."""
    server.shutdown()
    server.server_close()
