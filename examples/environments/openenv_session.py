"""A session of an OpenEnv server, over its WebSocket protocol."""

from __future__ import annotations

import json
from typing import Any

from websockets.sync.client import connect


class OpenEnvSession:
    """A conversation with a server that may run elsewhere, with packages of its own.

    It needs `allowsNetwork: true`, and a server for as many sessions as `concurrency`.
    """

    def __init__(self, *, url: str) -> None:
        self._url = url
        self._total = self._turn = 0.0
        self._is_done = False

    def reset(self, seed: int | None = None) -> str:
        """Begin an episode; its first observation is added to the prompt."""
        # A thread of the connection answers the server's pings while the model generates.
        self._connection = connect(f"{self._url}/ws")
        return self._ask("reset", {} if seed is None else {"seed": seed})

    def step(self, action: dict[str, Any]) -> str:
        """Act in the environment.

        Args:
            action: an object with the fields of the environment's actions.
        """
        return "The episode is over." if self._is_done else self._ask("step", action)

    def turn_reward(self) -> float:
        """Return the sum of the rewards of the turn's steps."""
        turn, self._turn = self._turn, 0.0
        return turn

    def reward(self) -> float:
        """Return the sum of all rewards."""
        return self._total

    def _ask(self, kind: str, data: dict[str, Any]) -> str:
        self._connection.send(json.dumps({"type": kind, "data": data}))
        reply = json.loads(self._connection.recv())
        if reply["type"] == "error":
            raise RuntimeError(reply["data"]["message"])
        self._is_done, reward = reply["data"]["done"], float(reply["data"]["reward"] or 0)
        self._turn, self._total = self._turn + reward, self._total + reward
        return json.dumps(reply["data"]["observation"])
