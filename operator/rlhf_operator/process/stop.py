"""How all parts of the operator's process are told to end."""

from __future__ import annotations

import asyncio
import signal


class Stop(asyncio.Event):
    """Set: end, now."""

    def take_signals(self) -> None:
        """SIGTERM and SIGINT set it from now on. In the event loop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.set)

    async def pause(self, seconds: float) -> None:
        """For so long, or until it is set."""
        try:
            async with asyncio.timeout(seconds):
                await self.wait()
        except TimeoutError:
            return
