"""A session of an OpenEnv server, in the process of a conversation.

The server here speaks the protocol of openenv-core 0.3.0. `openenv_counter.py` is the same
environment for that package; RLHF_TEST_OPENENV names a server that runs it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from websockets.sync.server import ServerConnection, serve

from rlhf_runtime.environments.episodes import Episodes
from rlhf_runtime.environments.results import Acted, Begun, Ended
from rlhf_runtime.environments.settings import EnvironmentSettings
from rlhf_runtime.environments.tool_call import ToolCall

from .conftest import LIMITS
from .test_episodes import play

EXAMPLES = Path(__file__).parents[3] / "examples" / "environments"


def count(connection: ServerConnection) -> None:
    """Serve one session: its total begins at the seed, and ends at 10 or above."""
    total, reward = 0, None
    for text in connection:
        match json.loads(text):
            case {"type": "reset", "data": data}:
                total, reward = data.get("seed", 0), None
            case {"type": "step", "data": {"amount": int(amount)}}:
                total, reward = total + amount, float(amount)
            case _:
                error = {"message": "Field required", "code": "VALIDATION_ERROR"}
                connection.send(json.dumps({"type": "error", "data": error}))
                continue
        data = {"observation": {"total": total}, "reward": reward, "done": total >= 10}
        connection.send(json.dumps({"type": "observation", "data": data}))


@pytest.fixture
def url() -> Iterator[str]:
    if "RLHF_TEST_OPENENV" in os.environ:
        yield os.environ["RLHF_TEST_OPENENV"]
        return
    with serve(count, "127.0.0.1", 0) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
        server.shutdown()
        thread.join()


def counted(
    url: str, row: Mapping[str, Any], *actions: Mapping[str, Any]
) -> tuple[Begun, list[Acted], Ended]:
    """Play a conversation whose turns take one action each."""
    settings = EnvironmentSettings(
        {"": "openenv_session:OpenEnvSession"}, {"url": url}, allow_network=True, **LIMITS
    )
    turns = [[ToolCall("step", {"action": action})] for action in actions]
    return play(Episodes(settings, [str(EXAMPLES)]), row, *turns)


def test_steps_are_answered_and_their_rewards_are_those_of_the_turns(url: str) -> None:
    begun, acted, ended = counted(url, {}, {"amount": 4}, {"amount": 7}, {"amount": 1})
    assert json.loads(begun.observation or "")["total"] == 0
    assert [json.loads(one.answers[0])["total"] for one in acted[:2]] == [4, 11]
    assert [one.reward for one in acted] == [4.0, 7.0, 0.0] and ended == Ended(11.0)
    assert acted[2].answers == ("The episode is over.",)


def test_a_row_chooses_the_seed(url: str) -> None:
    begun, acted, ended = counted(url, {"seed": 3}, {"amount": 2})
    assert json.loads(begun.observation or "")["total"] == 3
    assert json.loads(acted[0].answers[0])["total"] == 5 and ended == Ended(2.0)


def test_an_action_that_the_server_refuses_is_an_error_of_the_call(url: str) -> None:
    _, acted, ended = counted(url, {}, {"sum": 4}, {"amount": 4})
    assert acted[0].answers[0].startswith("error: RuntimeError: ") and acted[0].wrong == (0,)
    assert acted[1].reward == 4 and ended == Ended(4.0)
