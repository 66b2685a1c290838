"""A command in a container over a WebSocket: its output, its complaints and how it ended.

Each message begins with a byte that says which of these follows. Messages are taken one by one, so
that what was not asked for yet waits on the other side and not in memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final, Protocol

from rlhf_cli.cluster.client import CommandFailed, StreamBroken
from rlhf_cli.cluster.refusals import Refusal, read_refusal

QUIET_SECONDS: Final = 60.0
"""How long a command may write nothing before its connection counts as broken."""
LONGEST_COMPLAINT: Final = 4096
CLOSE: Final = 8
"""WebSocket's code of a message that ends the connection."""
_STDOUT, _STDERR, _OUTCOME = 1, 2, 3
_HANDSHAKE = re.compile(r"Handshake status (\d{3})\b")
_BEFORE_BODY = "-+-+- "


class Frame(Protocol):
    """A message."""

    data: bytes


class Socket(Protocol):
    """What is needed of websocket-client's connections."""

    def settimeout(self, timeout: float) -> None: ...

    def recv_data_frame(self, control_frame: bool) -> tuple[int, Frame]: ...


def output(socket: Socket) -> Iterator[bytes]:
    """What the command writes to its standard output, as it comes.

    Raises:
        CommandFailed: it ended with another code than 0.
        StreamBroken: the connection ended before it did.
    """
    socket.settimeout(QUIET_SECONDS)
    complaints = outcome = b""
    while True:
        code, frame = socket.recv_data_frame(True)
        if code == CLOSE:
            break
        channel, data = frame.data[:1], frame.data[1:]
        if channel == bytes([_STDOUT]) and data:
            yield data
        elif channel == bytes([_STDERR]):
            complaints = (complaints + data)[-LONGEST_COMPLAINT:]
        elif channel == bytes([_OUTCOME]):
            outcome += data
    _require_success(outcome, complaints.decode("utf-8", "replace"))


def _require_success(outcome: bytes, complaints: str) -> None:
    if not outcome:
        raise StreamBroken("the command's outcome did not arrive")
    status = json.loads(outcome)
    if status.get("status") == "Success":
        return
    causes = (status.get("details") or {}).get("causes") or ()
    codes = [int(each["message"]) for each in causes if each.get("reason") == "ExitCode"]
    if not codes:  # it did not even start, or its container went away
        raise StreamBroken(str(status.get("message", "no outcome")))
    raise CommandFailed(codes[0], complaints)


def refused_handshake(text: str) -> Refusal | None:
    """The API server's answer in websocket-client's error of a beginning; None if it has none."""
    found = _HANDSHAKE.search(text)
    if found is None:
        return None
    return read_refusal(int(found[1]), text.rpartition(_BEFORE_BODY)[2].encode())
