"""A driver that a test directs by files; Ray starts it as a process of its own.

    python scripted_driver.py FOLDER PORT [WORD ...]

It writes `seen.json`: its arguments and environment. It serves `report.json` while that exists,
and writes `acknowledged.json`. When `end.json` appears it writes the output in it and ends with
its exit code, or by its signal. On SIGTERM it writes `terminated`, then the text of `farewell` and
ends with 130; with a file `stubborn` it goes on.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType

FOLDER = Path(sys.argv[1])
PORT = int(sys.argv[2])
INTERRUPTED = 130


class Report(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        report = FOLDER / "report.json"
        if self._is_allowed():
            if self.path == "/report" and report.exists():
                self._answer(200, report.read_bytes())
            else:
                self._answer(404)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self._is_allowed():
            write(FOLDER / "acknowledged.json", body.decode())
            self._answer(204)

    def _is_allowed(self) -> bool:
        allowed = self.headers["Authorization"] == f"Bearer {os.environ['RAY_AUTH_TOKEN']}"
        if not allowed:
            self._answer(401)
        return allowed

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """The output is the test's."""


def write(path: Path, text: str) -> None:
    """All at once: a reader never sees half of it."""
    half = path.with_suffix(".half")
    half.write_text(text, encoding="utf-8")
    half.rename(path)


def say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def on_sigterm(number: int, frame: FrameType | None) -> None:
    (FOLDER / "terminated").touch()
    if not (FOLDER / "stubborn").exists():
        say((FOLDER / "farewell").read_text(encoding="utf-8"))
        os._exit(INTERRUPTED)


def main() -> None:
    signal.signal(signal.SIGTERM, on_sigterm)
    server = ThreadingHTTPServer(("127.0.0.1", PORT), Report)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    write(FOLDER / "seen.json", json.dumps([sys.argv[3:], dict(os.environ)]))
    order = FOLDER / "end.json"
    while not order.exists():
        time.sleep(0.02)
    end = json.loads(order.read_text(encoding="utf-8"))
    say(end["output"])
    if end["code"] < 0:
        os.kill(os.getpid(), -end["code"])
    os._exit(end["code"])


if __name__ == "__main__":
    main()
