"""A reward service of a user's own, for a test."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


@contextmanager
def scoring_service(
    score: Callable[[Mapping[str, Any]], Any], host: str = "127.0.0.1"
) -> Iterator[str]:
    """Run a service that scores sample by sample; yields its address.

    Args:
        score: returns the score of a sample.
        host: an address of this machine.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            scores = [score(sample) for sample in request["samples"]]
            body = json.dumps({"scores": scores}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_words: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        # With less, connections of a concurrent client wait for a second.
        request_queue_size = 128

    with Server((host, 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://{host}:{server.server_port}/score"
        finally:
            server.shutdown()
            thread.join()
