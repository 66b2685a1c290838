"""Output of commands in containers, message by message."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from rlhf_kube.command_stream import CLOSE, command_output, refused_handshake
from rlhf_kube.errors import CommandFailed, StreamBroken

BINARY, PING = 2, 9


@dataclass
class Message:
    data: bytes


class Messages:
    """A connection whose messages are known."""

    def __init__(self, *messages: tuple[int, bytes]) -> None:
        self._messages = list(messages)
        self.taken = 0

    def settimeout(self, timeout: float) -> None:
        assert timeout > 0

    def recv_data_frame(self, control_frame: bool) -> tuple[int, Message]:
        assert control_frame
        code, data = self._messages[self.taken]
        self.taken += 1
        return code, Message(data)


def outcome(**status: Any) -> tuple[int, bytes]:
    return BINARY, b"\x03" + json.dumps(status).encode()


DONE, END = outcome(status="Success"), (CLOSE, b"")
OUT_A, OUT_B = (BINARY, b"\x01a\x00"), (BINARY, b"\x01b\n")


def test_output_is_taken_message_by_message() -> None:
    socket = Messages((BINARY, b"\x01"), OUT_A, (PING, b"x"), (BINARY, b""), OUT_B, DONE, END)
    pieces = command_output(socket)
    assert next(pieces) == b"a\x00" and socket.taken == 2  # no more than was asked for
    assert list(pieces) == [b"b\n"]


def test_a_command_that_fails_says_how() -> None:
    code = {"causes": [{"reason": "ExitCode", "message": "3"}]}
    failed = outcome(status="Failure", reason="NonZeroExitCode", details=code)
    with pytest.raises(CommandFailed, match="exit code 3: no such file") as caught:
        list(command_output(Messages(OUT_A, (BINARY, b"\x02no such file\n"), failed, END)))
    assert caught.value.code == 3


@pytest.mark.parametrize(
    "messages", [(OUT_A, END), (outcome(status="Failure", message="container is gone"), END)]
)
def test_without_an_outcome_the_connection_has_broken(messages: tuple[Any, ...]) -> None:
    with pytest.raises(StreamBroken):
        list(command_output(Messages(*messages)))


def test_the_answer_to_a_refused_beginning_is_found() -> None:
    body = json.dumps({"kind": "Status", "message": 'pods "x" not found', "details": {"name": "x"}})
    text = f"Handshake status 404 Not Found -+-+- {{'date': 'now'}} -+-+- {body}\n"
    refusal = refused_handshake(text)
    assert refusal is not None
    assert (refusal.status, refusal.name, refusal.message) == (404, "x", 'pods "x" not found')
    assert refused_handshake("[Errno 111] Connection refused") is None
