"""Messages of a connection, read by an event loop."""

from __future__ import annotations

import asyncio
import socket

from rlhf_runtime.environments import frames

_PART_BYTES = 1 << 16


class MessageReader:
    """Receives the messages of a connection. A caller that gives up waiting loses none."""

    def __init__(self, connection: socket.socket) -> None:
        """
        Args:
            connection: a socket that does not block.
        """
        self._connection = connection
        self._content = bytearray()

    async def receive(self) -> frames.Message:
        """Wait for a message.

        Raises:
            EOFError: the other end has closed the connection.
            BadFrame: something else was received.
        """
        while (message := self.receive_now()) is None:
            await wait_until_ready(self._connection)
        return message

    def receive_now(self) -> frames.Message | None:
        """Return a message that has arrived. None: there is no complete one.

        Raises:
            EOFError, BadFrame: see `receive`.
        """
        while len(self._content) < (size := self._next_size()):
            try:
                part = self._connection.recv(_PART_BYTES)
            except BlockingIOError:
                return None
            except ConnectionError:
                raise EOFError from None
            if not part:
                raise EOFError
            self._content += part
        text = bytes(self._content[frames.LENGTH.size : size])
        del self._content[:size]
        return frames.decode(text)

    def _next_size(self) -> int:
        """Return the bytes of the next message with its header; before this, of the header."""
        header = bytes(self._content[: frames.LENGTH.size])
        if len(header) < frames.LENGTH.size:
            return frames.LENGTH.size
        return frames.LENGTH.size + frames.length_of(header)


async def wait_until_ready(connection: socket.socket, *, to_write: bool = False) -> None:
    """Wait until a connection can be read.

    Args:
        connection: must stay open until this returns.
        to_write: True to wait until it can be written.
    """
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    add, remove = loop.add_reader, loop.remove_reader
    if to_write:
        add, remove = loop.add_writer, loop.remove_writer

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    add(connection, wake)
    try:
        await ready
    finally:
        remove(connection)
