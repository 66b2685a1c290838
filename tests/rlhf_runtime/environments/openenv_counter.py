"""The environment of test_openenv_session.py, for a server of the package openenv-core.

`pip install openenv-core`, `uvicorn openenv_counter:app --port 8000` in this folder, then
`RLHF_TEST_OPENENV=ws://127.0.0.1:8000 pytest test_openenv_session.py`.
"""

from __future__ import annotations

from typing import Any

from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app


class Add(Action):
    amount: int


class Total(Observation):
    total: int


class Counter(Environment):
    """A total that begins at the seed, and ends at 10 or above."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, **_: Any) -> Total:
        self._total = seed or 0
        return Total(total=self._total)

    def step(self, action: Add, **_: Any) -> Total:
        self._total += action.amount
        return Total(total=self._total, reward=float(action.amount), done=self._total >= 10)

    @property
    def state(self) -> State:
        return State()


app = create_fastapi_app(Counter, Add, Total, max_concurrent_envs=8)
