"""Servers in background threads that close fast."""

from __future__ import annotations

import threading
from functools import partial
from socketserver import BaseServer

# Interval in which a server checks for its close: the maximum time of a close.
CLOSE_SECONDS = 0.05


def serve_in_thread(server: BaseServer, name: str) -> None:
    """Serve until `stop_serving`, or until the process ends."""
    serve = partial(server.serve_forever, CLOSE_SECONDS)
    threading.Thread(target=serve, name=name, daemon=True).start()


def stop_serving(server: BaseServer) -> None:
    """Stop to serve, and release the port."""
    server.shutdown()
    server.server_close()
