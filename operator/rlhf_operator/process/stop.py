"""The event that ends all parts of the operator's process."""

from __future__ import annotations

import asyncio
import signal


class Stop(asyncio.Event):
    """Set when the process must end."""

    def handle_signals(self) -> None:
        """Set it on SIGTERM and SIGINT. Call it in the event loop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.set)

    async def pause(self, seconds: float) -> None:
        """Wait for a time, or until it is set."""
        try:
            async with asyncio.timeout(seconds):
                await self.wait()
        except TimeoutError:
            return
