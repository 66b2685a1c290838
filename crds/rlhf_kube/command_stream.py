"""Output and exit code of a command in a container, over a WebSocket.

The first byte of each message names its channel. Messages are read one by one, so that unread
output waits at the sender and not in memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final, Protocol

from rlhf_kube.errors import CommandFailed, StreamBroken
from rlhf_kube.refusals import Refusal, parse_refusal

QUIET_SECONDS: Final = 60.0
"""A command that writes nothing for this long counts as disconnected."""
MAX_STDERR_BYTES: Final = 4096
CLOSE: Final = 8
"""WebSocket opcode of a closing message."""
_STDOUT, _STDERR, _OUTCOME = 1, 2, 3
_HANDSHAKE = re.compile(r"Handshake status (\d{3})\b")
_BEFORE_BODY = "-+-+- "


class Frame(Protocol):
    """A message."""

    data: bytes


class Socket(Protocol):
    """The part of websocket-client's connections that is used here."""

    def settimeout(self, timeout: float) -> None: ...

    def recv_data_frame(self, control_frame: bool) -> tuple[int, Frame]: ...


def command_output(socket: Socket) -> Iterator[bytes]:
    """Yield the command's standard output.

    Raises:
        CommandFailed: it ended with a nonzero exit code.
        StreamBroken: the connection broke before it ended.
    """
    socket.settimeout(QUIET_SECONDS)
    stderr = outcome = b""
    while True:
        code, frame = socket.recv_data_frame(True)
        if code == CLOSE:
            break
        channel, data = frame.data[:1], frame.data[1:]
        if channel == bytes([_STDOUT]) and data:
            yield data
        elif channel == bytes([_STDERR]):
            # Only the end: a command may complain without an end.
            stderr = (stderr + data)[-MAX_STDERR_BYTES:]
        elif channel == bytes([_OUTCOME]):
            outcome += data
    _require_success(outcome, stderr.decode("utf-8", "replace"))


def _require_success(outcome: bytes, stderr: str) -> None:
    # Without an outcome the output may be incomplete, even if it looks complete.
    if not outcome:
        raise StreamBroken("the command's outcome did not arrive")
    status = json.loads(outcome)
    if status.get("status") == "Success":
        return
    causes = (status.get("details") or {}).get("causes") or ()
    # The exit code is the message of a cause, as a string.
    codes = [int(cause["message"]) for cause in causes if cause.get("reason") == "ExitCode"]
    if not codes:  # the command did not start, or its container was deleted
        raise StreamBroken(str(status.get("message", "no outcome")))
    raise CommandFailed(codes[0], stderr)


def refused_handshake(text: str) -> Refusal | None:
    """Extract the API server's answer from websocket-client's handshake error, if there is one."""
    match = _HANDSHAKE.search(text)
    if match is None:
        return None
    return parse_refusal(int(match[1]), text.rpartition(_BEFORE_BODY)[2].encode())
