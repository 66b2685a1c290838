"""A server of this machine that runs commands as an API server and a kubelet do: over a WebSocket.

It speaks HTTP and WebSocket's frames itself, so that the client's side is the real one.
"""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import socketserver
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlparse

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
PIECE_BYTES = 1 << 14
BINARY, CLOSE, PING = 0x82, 0x88, 0x89
CLOSE_SECONDS = 0.02
"""How often a server looks whether it is to close: its close takes up to as long."""


class Handler(socketserver.StreamRequestHandler):
    """Runs the command of one request, in whatever pod it is asked for."""

    def handle(self) -> None:
        target = self.rfile.readline().split()[1].decode()
        headers = dict(self._headers())
        if "/pods/none/" in target:
            return self._refuse()
        key = headers["sec-websocket-key"].encode()
        accept = base64.b64encode(hashlib.sha1(key + GUID).digest()).decode()
        protocol = headers["sec-websocket-protocol"].split(",")[0].strip()
        self.wfile.write(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: {protocol}\r\n\r\n".encode()
        )
        self._run(
            parse_qs(urlparse(target).query, keep_blank_values=True)["command"],
            "/pods/dying/" in target,
        )

    def _headers(self) -> Iterator[tuple[str, str]]:
        while line := self.rfile.readline().decode().strip():
            name, _, value = line.partition(":")
            yield name.lower(), value.strip()

    def _refuse(self) -> None:
        details = {"name": "none", "kind": "pods"}
        status = {"kind": "Status", "message": 'pods "none" not found', "details": details}
        body = json.dumps(status).encode() + b"\n"
        head = f"HTTP/1.1 404 Not Found\r\nContent-Length: {len(body)}\r\n\r\n"
        self.wfile.write(head.encode() + body)

    def _run(self, command: list[str], dies: bool) -> None:
        done = subprocess.run(command, capture_output=True)
        self._send(BINARY, b"\x01")  # as servers begin
        for begin in range(0, len(done.stdout), PIECE_BYTES):
            if dies and begin:
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            self._send(PING, b"")
            self._send(BINARY, b"\x01" + done.stdout[begin : begin + PIECE_BYTES])
        if done.stderr:
            self._send(BINARY, b"\x02" + done.stderr)
        self._send(BINARY, b"\x03" + json.dumps(outcome(done.returncode)).encode())
        self._send(CLOSE, struct.pack(">H", 1000))
        self.rfile.read()  # until the client has gone

    def _send(self, code: int, data: bytes) -> None:
        size = bytes([len(data)]) if len(data) < 126 else b"\x7e" + struct.pack(">H", len(data))
        self.wfile.write(bytes([code]) + size + data)


def outcome(code: int) -> dict[str, Any]:
    """How a command ended, as a Status."""
    if code == 0:
        return {"kind": "Status", "status": "Success"}
    causes = [{"reason": "ExitCode", "message": str(code)}]
    return {"kind": "Status", "status": "Failure", "details": {"causes": causes}}


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


@contextmanager
def exec_server() -> Iterator[str]:
    """The address of a running server."""
    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(CLOSE_SECONDS,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
