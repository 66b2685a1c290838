"""Notices that Ray has gone while the driver hangs in a call of Ray's own.

Such a call waits for a minute; then Ray ends the process, in its own words.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from rlhf_runtime.errors import RayFailed
from rlhf_runtime.hooks import Hook

LOOK_SECONDS = 1.0
RAISE_SECONDS = 10.0
"""How long the driver has to notice the same by itself and to end in order."""


class RayWatch:
    """A thread that looks after Ray, and ends the process where nothing else can."""

    def __init__(
        self,
        require_ray: Hook,
        give_up: Callable[[RayFailed], None],
        look_seconds: float = LOOK_SECONDS,
        raise_seconds: float = RAISE_SECONDS,
    ) -> None:
        """
        Args:
            require_ray: raises RayFailed where Ray has gone.
            give_up: called in the thread, with what was raised, when nobody called `close` in time.
            look_seconds: from one look to the next.
            raise_seconds: from the failure to `give_up`.
        """
        self._require_ray = require_ray
        self._give_up = give_up
        self._look_seconds = look_seconds
        self._raise_seconds = raise_seconds
        self._resting = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._look, name="ray-watch", daemon=True)

    def start(self) -> None:
        """Look from now on."""
        self._thread.start()

    def rest(self) -> None:
        """Look no more, for Ray is about to be ended; a failure that was seen stays one."""
        self._resting.set()

    def close(self) -> None:
        """The driver does not hang: nothing is given up any more."""
        self.rest()
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _look(self) -> None:
        while not self._resting.wait(self._look_seconds):
            try:
                self._require_ray()
            except RayFailed as error:
                if not self._closed.wait(self._raise_seconds):
                    self._give_up(error)
                return
