"""Detects that Ray has died, even while the driver hangs in one of Ray's calls.

Such a call waits for a minute; then Ray ends the process with its own message.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from rlhf_runtime.errors import RayFailed
from rlhf_runtime.hooks import Hook

POLL_SECONDS = 1.0
# Time for the driver, after Ray's death, to notice it and to end in order.
END_SECONDS = 20.0


class RayWatch:
    """A thread that checks Ray, and ends a driver that does not end in time."""

    def __init__(
        self,
        require_ray: Hook,
        give_up: Callable[[RayFailed], None],
        poll_seconds: float = POLL_SECONDS,
        end_seconds: float = END_SECONDS,
    ) -> None:
        """
        Args:
            require_ray: raises RayFailed if Ray has died.
            give_up: called in the thread with that error, if nobody called `close` in time.
            poll_seconds: interval of checks.
            end_seconds: from the failure to `give_up`.
        """
        self._require_ray = require_ray
        self._give_up = give_up
        self._poll_seconds = poll_seconds
        self._end_seconds = end_seconds
        self._stopped = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ray-watch", daemon=True)

    def start(self) -> None:
        """Start to check."""
        self._thread.start()

    def stop_polling(self) -> None:
        """Stop checking, before Ray is ended on purpose. A failure that was seen stays one."""
        self._stopped.set()

    def close(self) -> None:
        """Cancel `give_up`: the driver has ended in time."""
        self.stop_polling()
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._poll_seconds):
            try:
                self._require_ray()
            except RayFailed as error:
                if not self._closed.wait(self._end_seconds):
                    self._give_up(error)
                return
